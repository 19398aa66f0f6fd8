"""A set of rows on disk.

    train.jsonl, held_out.jsonl    a row a line: JSON, UTF-8, TRL's columns first
    rows.json                      what was recognised, changed and left out

`read_rows(directory, "train")` gives the rows of one part, one at a time.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.manifest import text_digest

if TYPE_CHECKING:  # pyarrow: what reads rows is started up with, too
    from tasks.data.documents import Split

Row = dict[str, Any]

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

OPTIONAL = ("tools", "chat_template_kwargs")  # TRL's columns that a row of any kind may have


def read_rows(directory: Path, split: "Split") -> Iterator[Row]:
    """The rows of one part, in their order."""
    return read_lines(directory / f"{split}.jsonl")


def read_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield json.loads(line)


def encoded(row: Row) -> str:
    """A row as its line, without the end of it. Raises ValueError for what JSON has no word for."""
    return _ENCODER.encode(row)


def is_conversational(row: Row) -> bool:
    """Whether a row has lists of messages, not text."""
    return isinstance(row.get("prompt", row.get("messages")), list)


def reward_columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """What rewards are called with beside prompts and completions, a value for each row: the rows' own completions
    among them."""
    without = {True: ("prompt", *OPTIONAL), False: ("messages", "text", *OPTIONAL)}  # by whether there is a prompt
    names = dict.fromkeys(name for row in rows for name in row if name not in without["prompt" in row])
    return {name: [row.get(name) for row in rows] for name in names}


def asked(row: Row) -> list[str]:
    """What a row asks of a model: each turn of the user, or the text of the prompt; of a row of text, all of it."""
    said: str | list[Row] = row.get("prompt") or row.get("messages") or row["text"]
    if isinstance(said, str):
        return [said]
    return [str(message.get("content") or "") for message in said if message["role"] == "user"]


def plain(text: str) -> str:
    """Text without what makes no difference to a person: case, and how wide its spaces are."""
    return " ".join(text.lower().split())


def split_key(row: Row, seed: int) -> str:
    """What decides a row's part, for `tasks.data.documents.split_of`: the beginning of what it asks. So rows with one
    prompt and different answers are never on both sides, and other rows may come and go."""
    return text_digest(f"{seed}\0{plain(asked(row)[0])}")
