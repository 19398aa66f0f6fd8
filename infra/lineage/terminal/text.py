"""Tables and sections of text. What comes from the store is escaped, since a terminal obeys control characters."""

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from baton.infra.lineage.pages import Page, as_json
from baton.infra.text import escaped, value

store_option = click.option(
    "--store", help="MLflow's database, sqlite:///… or postgresql://…; default: the tracking store."
)
json_option = click.option("--json", "is_json", is_flag=True, help="Print the data of the page, as JSON.")


def print_json(page: Page) -> None:
    click.echo(json.dumps(as_json(page), indent=1))


def line(text: object) -> str:
    """Return a text on one line, escaped."""
    return escaped(" ".join(str(text).split()))


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def table(rows: Iterable[Sequence[object]], head: Sequence[str] = (), indent: str = "") -> list[str]:
    """Return the lines of a table, its columns as wide as their content. The last column may have any length."""
    cells = [[line(cell) for cell in row] for row in ([head] if head else []) + list(rows)]
    if not cells:
        return []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        f"{indent}{'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip()
        for row in cells
    ]


def section(title: str, lines: Iterable[str]) -> None:
    """Print lines below a title, or nothing if there are none."""
    if shown := list(lines):
        click.echo(f"\n{title}")
        for each in shown:
            click.echo(f"  {each}")


def pairs(items: Iterable[tuple[str, Any]]) -> list[str]:
    """Return lines of names and values, without those that are None or empty."""
    return table((name, value(each)) for name, each in items if each not in (None, "", {}, []))


def tags_of(row: dict[str, Any]) -> str:
    """Return an execution's tags on a line."""
    return " ".join(name if value == "yes" else f"{name}={value}" for name, value in row["tags"].items())
