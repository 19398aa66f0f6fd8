"""Blocks as Markdown that also reads well unrendered, in a terminal. Drawings and folds are left
out: they are the web page's."""

import re
from functools import singledispatch

from infra.charts import Figure
from infra.text import encodable
from tasks.report.blocks import (
    Block,
    Cell,
    Code,
    Fold,
    Grid,
    List,
    Mark,
    Pieces,
    Sample,
    Section,
    Table,
    Text,
    Title,
)

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

PROMPT_LINES = 4  # of a sample's prompt: the end of it
ANSWER_LINES = 3  # of each answer: its beginning
LINE = 120  # characters of a sample's line


def markdown(blocks: list[Block]) -> str:
    return encodable("\n\n".join(text for block in blocks if (text := render(block))) + "\n")


@singledispatch
def render(block: Block) -> str:
    raise TypeError(f"{type(block).__name__} is no block")


@render.register
def _title(block: Title) -> str:
    return f"# {_plain(block.text)}\n\n{_plain(block.below)}"


@render.register
def _text(block: Text) -> str:
    return _plain(block.text)


@render.register
def _code(block: Code) -> str:
    text = printable(block.text).rstrip("\n")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return (_plain(block.caption) + "\n" if block.caption else "") + f"{fence}\n{text}\n{fence}"


@render.register
def _pieces(block: Pieces) -> str:
    return render(Code("│".join(block.pieces), block.caption))


@render.register
def _table(block: Table) -> str:
    """Padded, so that the columns stand under each other in a terminal too."""
    every: list[list[Cell]] = [list(block.columns), *block.rows]
    rows = [[_plain(_words(cell)).replace("|", "\\|") for cell in row] for row in every]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    align = block.alignment()
    rule = "|".join(map(_ruled, widths, align))
    head, *body = [" | ".join(map(_aligned, row, widths, align)) for row in rows]
    return "\n".join([f"| {head} |", f"|{rule}|", *(f"| {line} |" for line in body)])


def _ruled(width: int, letter: str) -> str:
    return "-" * (width + 1) + (":" if letter == "r" else "-")


def _aligned(text: str, width: int, letter: str) -> str:
    return text.rjust(width) if letter == "r" else text.ljust(width)


@render.register
def _sample(block: Sample) -> str:
    indent = re.findall(r"[ \t]*", block.prompt.rsplit("\n", 1)[-1])[0]
    lines = [f"# {block.title}", *block.prompt.rstrip().split("\n")[-PROMPT_LINES:]]
    for who, what, _ in block.answers:
        first, *more = (what.strip() or "(nothing)").split("\n")[:ANSWER_LINES]
        lines += [f"{indent}{first}  # {who}", *more]
    return render(Code("\n".join(line[:LINE] for line in lines)))


@render.register
def _list(block: List) -> str:
    return "\n".join(f"- {_plain(what)} `{_plain(where)}`" for what, where in block.items)


@render.register
def _section(block: Section) -> str:
    return "\n\n".join([f"## {_plain(block.title)}", *filter(None, map(render, block.blocks))])


@render.register
def _left_out(block: Figure | Grid | Fold) -> str:
    return ""


def printable(text: str) -> str:
    """Without the characters that can move a terminal's cursor, colour it or turn its text around."""
    return _CONTROL.sub("�", text)


def _plain(text: str) -> str:
    return " ".join(printable(text.replace("\n", " ")).split())


def _words(cell: Cell) -> str:
    return cell.text if isinstance(cell, Mark) else cell
