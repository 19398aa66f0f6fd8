"""The page of a reward check."""

from baton.infra.text import number
from baton.tasks.pages.blocks import Block, Cell, Mark, Table, Text
from baton.tasks.pages.source import Source


def reward_check(source: Source) -> list[Block]:
    """Return the scores of each list of rewards on the rows' own answers."""
    blocks: list[Block] = []
    for one in source.content_json("check.json") or []:
        caption = f"{one['path']}, on data.{one['data']}"
        rows: list[list[Cell]] = [
            [line["reward"], _score(line["own"]), _score(line["others"]), number(line["rows"]), _fault(line["fault"])]
            for line in one["lines"]
        ]
        head = ["reward", "own answers", "of other rows", "rows", ""]
        if rows:
            blocks.append(Table(caption, head, rows, "lrrrl"))
        else:
            blocks.append(Text(f"{caption}: nothing to try; {number(one['rows'])} of the first rows have an answer."))
    return blocks


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _fault(fault: str) -> Cell:
    return Mark(fault, "bad") if fault else ""
