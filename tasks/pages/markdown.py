"""Render blocks as Markdown that also reads well in a terminal. Figures and folds are only in the web page."""

import re
from collections.abc import Sequence

from baton.infra.text import encodable, fenced
from baton.tasks.pages.blocks import Block, Cell, Code, List, Mark, Notes, Pieces, Sample, Section, Table, Text, Title

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

PROMPT_LINES = 4  # the last lines of a sample's prompt
ANSWER_LINES = 3  # the first lines of each answer
LINE = 120  # characters per line of a sample


def markdown(blocks: list[Block]) -> str:
    return encodable("\n\n".join(filter(None, map(_render, blocks))) + "\n")


def _table(columns: Sequence[Cell], rows: Sequence[Sequence[Cell]], align: str) -> str:
    """Render a table, padded so that the columns line up in a terminal too. `align` has a letter per column, l or r."""
    texts = [[_plain(cell.text if isinstance(cell, Mark) else cell) for cell in row] for row in (columns, *rows)]
    lines = [[text.replace("|", "\\|") for text in row] for row in texts]
    sides = [(max(map(len, column)), side) for column, side in zip(zip(*lines, strict=True), align, strict=True)]
    rule = "|".join("-" * (width + 1) + (":" if side == "r" else "-") for width, side in sides)
    head, *body = [
        " | ".join(
            f"{text:{'>' if side == 'r' else '<'}{width}}" for text, (width, side) in zip(line, sides, strict=True)
        )
        for line in lines
    ]
    return "\n".join([f"| {head} |", f"|{rule}|", *(f"| {line} |" for line in body)])


def _render(block: Block) -> str:
    match block:
        case Title():
            return f"# {_plain(block.text)}\n\n{_plain(block.below)}"
        case Text():
            return _plain(block.text)
        case Notes():
            return "\n".join(f"- {_plain(text)}" for text in block.texts)
        case Code():
            caption = _plain(block.caption) + "\n" if block.caption else ""
            return caption + fenced(_printable(block.text).rstrip("\n"))
        case Pieces():
            return _render(Code("│".join(block.pieces), block.caption))
        case Table():
            return _table(block.columns, block.rows, block.alignment())
        case Sample():
            return _sample(block)
        case List():
            return "\n".join(f"- {_plain(what)} `{_plain(where)}`" for what, where in block.items)
        case Section():
            return "\n\n".join([f"## {_plain(block.title)}", *filter(None, map(_render, block.blocks))])
        case _:
            return ""


def _sample(block: Sample) -> str:
    indent = re.findall(r"[ \t]*", block.prompt.rsplit("\n", 1)[-1])[0]
    lines = [f"# {block.title}", *block.prompt.rstrip().split("\n")[-PROMPT_LINES:]]
    for answer in block.answers:
        first, *others = (answer.text.strip() or "(nothing)").split("\n")[:ANSWER_LINES]
        remark = f", {answer.remark.text}" if answer.remark and answer.remark.text else ""
        lines += [f"{indent}{first}  # {answer.who}{remark}", *others]
    if more := len(block.more) + block.left_out:
        lines.append(f"# and {more} more in the report's page")
    return _render(Code("\n".join(line[:LINE] for line in lines)))


def _printable(text: str) -> str:
    """Replace the characters that could control a terminal: cursor movement, color, text direction."""
    return _CONTROL.sub("�", text)


def _plain(text: str) -> str:
    return " ".join(_printable(text.replace("\n", " ")).split())
