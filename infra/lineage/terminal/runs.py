"""List the runs, newest first.

\b
baton runs                          the newest 20
baton runs laptop ada sweep=lr      those that match every word, as in the search of the pages: a name, a person, a
                                    note, a tag, a file, a digest, field=value
baton runs --state failed --since 2026-01-31
"""

import click

from baton.infra.lineage.database import open_database
from baton.infra.lineage.executions import ORDERS, QueryRefused
from baton.infra.lineage.pages import MOUNT, Pages
from baton.infra.lineage.terminal.text import json_option, print_json, store_option, table, tags_of, when
from baton.infra.text import duration, measure
from baton.infra.tracking.spool import executions, is_alive, is_delivered

A_LIST = 20


@click.command(help=__doc__)
@click.argument("words", nargs=-1)
@click.option("--recipe", default="", help="Only runs of the recipe with this name.")
@click.option("--state", default="", help="Only runs in this state: finished, failed, killed, running.")
@click.option("--since", default="", metavar="DATE", help="Only runs that began on this day (UTC) or later.")
@click.option("--until", default="", metavar="DATE", help="Only runs that began on this day (UTC) or earlier.")
@click.option("--sort", default="started", show_default=True, type=click.Choice(list(ORDERS)), help="Order.")
@click.option("-n", "--number", default=A_LIST, show_default=True, type=click.IntRange(1), help="How many.")
@json_option
@store_option
def main(
    words: tuple[str, ...], recipe: str, state: str, since: str, until: str, sort: str, number: int, is_json: bool,
    store: str | None,
) -> None:  # fmt: skip
    query = {"q": " ".join(words), "recipe": recipe, "state": state, "since": since, "until": until, "sort": sort}
    pages = Pages(open_database(store), MOUNT)
    try:
        page = pages.executions(query)
        for following in range(2, page["pages"] + 1):
            if len(page["executions"]) >= number:
                break
            page["executions"] += pages.executions(query | {"page": str(following)})["executions"]
    except QueryRefused as error:
        raise click.UsageError(str(error)) from error
    page["executions"] = page["executions"][:number]
    if is_json:
        print_json(page)
        return
    if not page["executions"]:
        click.echo("no run matches" if page["total"] else "there is no run yet")
    rows = [
        (
            row["id"],
            row["name"],
            row["status"].lower(),
            when(row["started"]),
            duration(row["duration_s"]),
            row["user"],
            _best(row["best"]),
            " | ".join(filter(None, (tags_of(row), row["note"]))),
        )
        for row in page["executions"]
    ]
    head = ("id", "recipe", "state", "started (UTC)", "took", "user", "best", "tags and note")
    for line in table(rows, head) if rows else ():
        click.echo(line)
    if page["matching"] > len(rows):
        click.echo(f"{page['matching'] - len(rows):,} more; -n shows more of them")
    if not store and (waiting := [each for each in executions() if not is_delivered(each) and not is_alive(each)]):
        click.echo(f"{len(waiting)} runs are not in the store yet: `baton ui` or the next run delivers them", err=True)


def _best(best: dict[str, float | str] | None) -> str:
    return f"{best['name']} {measure(float(best['value']), str(best['unit']))}" if best else ""
