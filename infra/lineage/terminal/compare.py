"""Compare two models, or any two artifacts: scores, recipes, data, settings, functions, code and versions.

\b
baton compare c08825ab af321073     by the first 6 characters of their digests, or more
baton compare my-model my-model@previous
baton compare RUN RUN               the last models of two runs; `last` is the newest run
"""

import click

from baton.infra.lineage.database import open_database
from baton.infra.lineage.pages import MOUNT, Page, Pages
from baton.infra.lineage.terminal.resolve import artifact_of
from baton.infra.lineage.terminal.text import json_option, line, print_json, section, store_option, table
from baton.infra.text import escaped, measure

MARKS = {"better": "▲", "worse": "▼", "within noise": "≈"}
DIGEST = 12  # characters


@click.command(help=__doc__)
@click.argument("a")
@click.argument("b")
@json_option
@store_option
def main(a: str, b: str, is_json: bool, store: str | None) -> None:
    pages = Pages(open_database(store), MOUNT)
    pages.graph.refresh()
    page = pages.compare({"a": artifact_of(pages, a), "b": artifact_of(pages, b)})
    if is_json:
        print_json(page)
    else:
        _show(page)


def _show(page: Page) -> None:
    sides = [(side.upper(), page[side]) for side in ("a", "b")]
    for row in table((letter, side["title"], side["digest"][:DIGEST], side["detail"]) for letter, side in sides):
        click.echo(row)
    if page["same"]:
        click.echo("\nTheir histories are the same: data, config, functions, code and versions.")
    scores = [
        (row["name"], *(_measured(row[side], row["unit"]) for side in ("a", "b")), row["change"], _verdict(row))
        for row in page["metrics"]
    ]
    section("Scores", table(scores, ("metric", "A", "B", "difference", "")) if scores else [])
    section("Recipes", map(escaped, page["recipes"]))
    difference = page["difference"]
    for title, rows, most in (
        ("Only in one history", page["only"], DIGEST),
        ("Data", difference["data"], DIGEST),
        ("Stage settings", difference["config"], 0),
        ("Code", difference["code"], 0),
        ("Versions", difference["versions"], 0),
    ):
        section(title, table((row["name"], _cut(row["a"], most), _cut(row["b"], most)) for row in rows))
    for changed in difference["functions"]:
        section(line(f"Function {changed['name']}"), map(escaped, changed["lines"]))


def _measured(value: float | None, unit: str) -> str:
    return "–" if value is None else measure(value, unit)


def _verdict(row: Page) -> str:
    unpaired = " (unpaired)" if row["paired"] is False and row["verdict"] in MARKS else ""
    return f"{MARKS.get(row['verdict'], '')} {row['verdict'] or ''}{unpaired}".strip()


def _cut(value: str | None, most: int) -> str:
    return "–" if value is None else value[:most] if most else value
