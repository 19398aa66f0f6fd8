"""Turn the champion back.

python -m workflows.rollback NAME                the version before is champion again; once more undoes it
python -m workflows.rollback NAME --to VERSION   an earlier champion is
python -m workflows.rollback NAME --show         who was champion, from when to when; changes nothing

A service that follows the champion moves by itself. Continuous training goes on from the version that
is turned back to: the versions after it are set aside, with the text that they brought, until they are
turned to again.
"""

import click

from infra.errors import Stopped
from infra.tracking.store import check_reachable
from tasks.job import StageError


@click.command(help=__doc__.replace("\n\n", "\n\n\b\n", 1))
@click.argument("name")
@click.option(
    "--to", type=click.IntRange(min=1), metavar="VERSION", help="An earlier champion; default: the one before."
)
@click.option("--show", is_flag=True, help="Show who was champion when, and change nothing.")
def main(name: str, to: int | None, show: bool) -> None:
    from tasks.publish.aliases import ROLLED_BACK_TAG, Version, terms, versions
    from tasks.publish.champion import roll_back

    check_reachable()

    def said(version: Version) -> str:
        return f"version {version.version} ({version.tags.get('baton.label', 'model')} {version.digest[:12]})"

    try:
        if show:
            served = [(term, each) for each in versions(name) for term in terms(each)]
            if not served:
                raise StageError(f"{name}: no version was ever champion")
            for term, each in sorted(served, key=lambda one: one[0]["since"] or ""):
                until = f"{term['until']}  {term['why']}" if term["until"] else "now"
                click.echo(f"{said(each)}  {term['since'] or 'unknown'} – {until}")
            return
        was, now = roll_back(name, to)
        aside = [str(each.version) for each in versions(name) if ROLLED_BACK_TAG in each.tags]
    except StageError as error:
        raise Stopped(str(error)) from error
    click.echo(f"champion of {name}: {said(now)}; it was {said(was)}, which is `previous` now")
    if aside:
        click.echo(f"set aside: {', '.join(aside)} (to undo: python -m workflows.rollback {name})")


if __name__ == "__main__":
    main()
