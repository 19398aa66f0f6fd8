"""Read a set of rows on disk.

    train.jsonl, held_out.jsonl    one row per line: JSON, UTF-8, TRL's columns first
    rows.json                      detected format, changes made, rows left out

`read_rows(directory, "train")` yields the rows of one split.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baton.tasks.core.manifest import text_digest

if TYPE_CHECKING:  # pyarrow, which must not be imported at start-up
    from baton.tasks.data.documents import Split

Row = dict[str, Any]

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

ANSWERS = ("completion", "chosen", "rejected")  # columns of the answer to a prompt
_RESERVED = {
    "completion_ids", "completions", "environments", "log_extra", "log_metric", "prompts", "solution_str",
    "trainer_state",
}  # fmt: skip
OPTIONAL = ("tools", "chat_template_kwargs")  # TRL's columns allowed in any kind of row
TRAIN = "train"  # field of an assistant's turn; false if it is not to be learned


def read_rows(directory: Path, split: "Split") -> Iterator[Row]:
    """Yield the rows of one split in order."""
    return read_lines(directory / f"{split}.jsonl")


def read_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield json.loads(line)


def drops_faulty(directory: Path) -> bool:
    """Return whether unusable rows of a set are left out and counted, instead of raising an error."""
    return bool(json.loads((directory / "rows.json").read_text()).get("drops_faulty"))


def encoded(row: Row) -> str:
    """Encode a row as a line, without the line ending. Raises ValueError for values that JSON cannot represent."""
    return _ENCODER.encode(row)


def is_conversational(row: Row) -> bool:
    """Return whether a row consists of messages instead of text."""
    return isinstance(row.get("prompt", row.get("messages")), list)


def without_marks(messages: Sequence[Row]) -> list[Row]:
    """The messages in the form that chat templates and rewards get."""
    return [{name: value for name, value in message.items() if name != TRAIN} for message in messages]


def reward_columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Columns that rewards are called with besides prompts and generated completions, including the rows' reference
    completions: one value per row."""
    excluded = {True: ("prompt", *OPTIONAL), False: ("messages", "text", *OPTIONAL)}  # with, without a prompt
    names = dict.fromkeys(name for row in rows for name in row if name not in excluded["prompt" in row])
    return {name: [row.get(name) for row in rows] for name in names}


def reserved_columns(rows: Sequence[Row]) -> dict[str, str]:
    """Columns that rewards cannot be called with, since Baton gives them arguments of these names
    (tasks/rewards/call.py), and what to do about each."""
    named = sorted({name for row in rows for name in row if name in _RESERVED})
    return {
        name: f"another name, since rewards get an argument of this one from Baton: columns: {{my_{name}: {name}}}, or "
        f"{{{name}: null}} to leave it out"
        for name in named
    }


def partial_columns(rows: Sequence[Row]) -> set[str]:
    """Columns that some of the rows have, but not all."""
    counts = Counter(name for row in rows for name in row)
    return {name for name, count in counts.items() if count < len(rows)}


def repeats_prompt(row: Row) -> bool:
    """Return whether every answer to a text prompt begins with that prompt."""
    prompt = row.get("prompt")
    answers = [row[name] for name in ANSWERS if isinstance(row.get(name), str)]
    if not isinstance(prompt, str) or not answers:
        return False
    return all(answer.lstrip().startswith(prompt.strip()) for answer in answers)


def prompt_turns(row: Row) -> list[str]:
    """A row's user turns, its text prompt, or all of its plain text."""
    prompt: str | list[Row] = row.get("prompt") or row.get("messages") or row["text"]
    if isinstance(prompt, str):
        return [prompt]
    return [str(message.get("content") or "") for message in prompt if message["role"] == "user"]


def common_prefix(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (first, second) in pairs if first != second), min(len(one), len(other)))


def plain(text: str) -> str:
    """Normalize case and white space."""
    return " ".join(text.lower().split())


def split_key(row: Row, seed: int) -> str:
    """Key of a row's split for `data.documents.split_of`: a hash of its first prompt turn. Thus rows with the
    same prompt get the same split, independent of all other rows."""
    return text_digest(f"{seed}\0{plain(prompt_turns(row)[0])}")
