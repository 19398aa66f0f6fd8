"""The blocks that a page consists of: plain data.

A page is built once, as blocks, and rendered twice: by `html.py` as the web page and the Flyte Decks, by `markdown.py`
as text for the terminal. Only these two escape text.
"""

from dataclasses import dataclass, field
from typing import Literal

from markupsafe import Markup

Tone = Literal["good", "bad", "quiet", "best"]


@dataclass(frozen=True)
class Mark:
    """A cell or a remark with a tone, such as good, bad, best of its row, or less important."""

    text: str
    tone: Tone


Cell = str | Mark


@dataclass(frozen=True)
class Title:
    """The page's headline, with a line below it."""

    text: str
    below: str


@dataclass(frozen=True)
class Text:
    text: str
    tone: Tone | None = None


@dataclass(frozen=True)
class Notes:
    """Sentences that are independent of each other: with the tone "bad" in one box."""

    texts: list[str]
    tone: Tone


@dataclass(frozen=True)
class Code:
    text: str
    caption: str = ""


@dataclass(frozen=True)
class Pieces:
    """A text split into pieces (tokens), with visible borders."""

    caption: str
    pieces: list[str]


@dataclass(frozen=True)
class Table:
    """`align` has a letter per column, l or r; default: l, then r."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]]
    align: str = ""

    def alignment(self) -> str:
        return self.align or "l" + "r" * (len(self.columns) - 1)


@dataclass(frozen=True)
class Grid:
    """Small figures side by side, as many as fit."""

    figures: list[Markup]


@dataclass(frozen=True)
class Answer:
    """A completion of a prompt, and who wrote it."""

    who: str
    text: str
    remark: Mark | None


@dataclass(frozen=True)
class Sample:
    """A prompt and its answers. `more` are collapsed until the reader opens them."""

    title: str
    prompt: str
    answers: list[Answer]
    more: list[Answer] = field(default_factory=list)
    left_out: int = 0  # number of answers that are not here


@dataclass(frozen=True)
class Fold:
    """Blocks that are collapsed until the reader opens them."""

    summary: str
    blocks: "list[Block]"


@dataclass(frozen=True)
class List:
    """Labels with a path or a command."""

    items: list[tuple[str, str]]


@dataclass(frozen=True)
class Section:
    title: str
    blocks: "list[Block]"


# Markup: a drawing, our own SVG
Block = Title | Text | Notes | Code | Pieces | Table | Markup | Grid | Sample | Fold | List | Section
