"""Roll back the champion.

baton rollback NAME                make the previous version champion; repeat to undo
baton rollback NAME --to VERSION   make an earlier champion champion again
baton rollback NAME --show         show the champions and their terms; changes nothing

An alias `champion` that was deleted is set again with --to.

A service that follows the champion switches by itself. Continuous training continues from the restored version. The
versions that it does not descend from, and the text that they brought, are set aside until one of them is restored.
"""

import click

from baton.infra.commands import command
from baton.infra.errors import UserError
from baton.infra.tracking.store import check_reachable
from baton.tasks.core.job import StageError


@click.command(help=__doc__.replace("\n\n", "\n\n\b\n", 1))
@click.argument("name")
@click.option(
    "--to", type=click.IntRange(min=1), metavar="VERSION", help="An earlier champion; default: the previous one."
)
@click.option("--show", is_flag=True, help="Show the champions and their terms, and change nothing.")
def main(name: str, to: int | None, show: bool) -> None:
    from baton.tasks.promote.ledger import generations
    from baton.tasks.publish.aliases import CHAMPION, Version, is_open, terms, version_at, versions
    from baton.tasks.publish.champion import roll_back

    check_reachable()

    def label(version: Version) -> str:
        return f"version {version.version} ({version.tags.get('baton.label', 'model')} {version.digest[:12]})"

    def set_aside() -> str:
        return ", ".join(str(each.version) for each in generations(name) if each.rolled_back)

    try:
        if show:
            champion = version_at(name, CHAMPION)
            served = [(term, version) for version in versions(name) for term in terms(version)]
            if champion and not is_open(champion):  # the alias was set by other means
                served.append(({"since": None, "until": None}, champion))
            if not served:
                raise StageError(f"{name}: no version was ever champion")
            for term, version in sorted(
                served, key=lambda one: one[0]["since"] or ("~" if one[0]["until"] is None else "")
            ):
                serves = champion and champion.version == version.version
                until = f"{term['until']}  {term['why']}" if term["until"] else "now" if serves else "unknown"
                click.echo(f"{label(version)}  {term['since'] or 'unknown'} – {until}")
            if aside := set_aside():
                click.echo(f"set aside: {aside}")
            return
        was, now = roll_back(name, to)
        aside = set_aside()
    except StageError as error:
        raise UserError(str(error)) from error
    previous = f"; `previous` is now {label(was)}" if was != now else ""
    click.echo(f"champion of {name}: {label(now)}{previous}")
    if aside:
        undo = command(f"baton rollback {name}")
        click.echo(f"set aside: {aside} (to undo: {undo})")
