"""What a page is made of: a few kinds of blocks, plain data.

A page is written once, as blocks, and rendered twice: `html.py` makes the web page and the Flyte
Decks, `markdown.py` the text for the terminal. So both say the same, and text that came from
outside (completions, file names) is escaped in one place only.
"""

from dataclasses import dataclass
from typing import Literal

from infra.charts import Figure

Tone = Literal["good", "bad", "quiet", "best"]


@dataclass(frozen=True)
class Mark:
    """A cell or a word with a meaning: met or not met, best of its row, less important."""

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
class Code:
    text: str
    caption: str = ""


@dataclass(frozen=True)
class Pieces:
    """A text cut into pieces, whose borders can be seen."""

    caption: str
    pieces: list[str]


@dataclass(frozen=True)
class Table:
    """`align` has one letter a column, l or r; the default is one name and then numbers."""

    caption: str
    columns: list[str]
    rows: list[list[Cell]]
    align: str = ""

    def alignment(self) -> str:
        return self.align or "l" + "r" * (len(self.columns) - 1)


@dataclass(frozen=True)
class Grid:
    """Small figures side by side, as many as fit."""

    figures: list[Figure]


@dataclass(frozen=True)
class Sample:
    """One prompt and what each model made of it: (who, what, remark)."""

    title: str
    prompt: str
    answers: list[tuple[str, str, Mark | None]]


@dataclass(frozen=True)
class Fold:
    """Shut until a person opens it."""

    summary: str
    blocks: "list[Block]"


@dataclass(frozen=True)
class List:
    """What to do, or where to look: (what, a path or a command)."""

    items: list[tuple[str, str]]


@dataclass(frozen=True)
class Section:
    title: str
    blocks: "list[Block]"


Block = Title | Text | Code | Pieces | Table | Figure | Grid | Sample | Fold | List | Section
