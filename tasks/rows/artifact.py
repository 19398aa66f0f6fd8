"""The artifact of rows."""

from collections.abc import Sequence
from typing import ClassVar

from baton.infra.text import number
from baton.tasks.artifacts import Artifact


class Rows(Artifact):
    """`train.jsonl` and `held_out.jsonl`: one row per line, in TRL's columns; `rows.json`: how they were processed."""

    kind = "rows"
    order = 50
    family = "data"
    page = "baton.tasks.rows.page:rows"
    held_out_files: ClassVar[Sequence[str]] = ("held_out.jsonl",)
    row_kind: str  # messages, prompt_completion, preference, prompt, text
    format: str  # the detected format
    conversational: bool  # lists of messages, not text
    columns: list[str]
    rows: int  # for training
    held_out_rows: int
    duplicates: int  # dropped, as are the next two
    faulty: int
    contaminated: int

    def detail(self) -> str:
        return f"{number(self.rows)} rows"
