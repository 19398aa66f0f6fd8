"""Find fields of rows that the chat template does not print, so that the model neither learns nor sees them.

    unprinted = Unprinted()
    unprinted.look(row)                     keep some rows of each field
    unprinted.look_for(turns, text)         look for the contents of learned turns in the rendered text
    unprinted.notices(render)               a line for each field that has no effect on the rendered text, and one for
                                            turns of which a part is missing, such as a model's thoughts

A field is tried by rendering conversations with and without it, message by message: whether a template prints a field
may depend on the message's role and place.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from baton.tasks.core.job import StageError
from baton.tasks.rows.stored import ANSWERS, OPTIONAL, TRAIN, Row

MOST = 16  # conversations that are tried for each field
# A call's id is not content, and the role decides how the other fields are printed
NOT_LOOKED_AT = ("role", "tool_call_id", TRAIN)
PARTS = re.compile(r"\n|<[^<>\n]*>")  # end a part: a template may print lines and tags in another way

Render = Callable[[Row, list[Row]], str]  # raises StageError


class Unprinted:
    """A collection of rows, made while they are tokenized."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Row]] = defaultdict(list)
        self._partly, self._missing = 0, ""  # turns of which a part is missing; the first such part

    def look(self, row: Row) -> None:
        messages = [message for conversation in conversations(row)[:1] for message in conversation]
        names = {name for message in messages for name in message if _has(message, name)}
        names |= {name for name in OPTIONAL if row.get(name)}
        for name in names.difference(NOT_LOOKED_AT):
            if len(self._rows[name]) < MOST:
                self._rows[name].append(row)

    def look_for(self, turns: Iterable[Row], text: str) -> None:
        for turn in turns:
            content = turn.get("content")
            parts = map(str.strip, PARTS.split(content)) if isinstance(content, str) else ()
            if missing := next((part for part in parts if part not in text), None):
                self._partly, self._missing = self._partly + 1, self._missing or missing

    def notices(self, render: Render) -> list[str]:
        notices = []
        if self._missing:
            notices.append(
                f"the chat template leaves out a part of {self._partly} assistant turns, such as "
                f"{self._missing[:80]!r}: it is not learned"
            )
        for name, rows in sorted(self._rows.items()):
            same = [one == other for row in rows for one, other in _with_and_without(name, row, render)]
            if any(same):
                what = name if name in OPTIONAL else f"{name} of messages"
                notices.append(
                    f"the chat template does not print {what} in {sum(same)} of {len(same)} places that were tried: "
                    "it is neither learned nor seen by the model"
                )
        return notices


def conversations(row: Row) -> list[list[Row]]:
    """Return the conversations of a row that are rendered; empty for a row of text."""
    if isinstance(row.get("messages"), list) and "prompt" not in row:
        return [row["messages"]]
    prompt = row.get("prompt")
    if not isinstance(prompt, list):
        return []
    answers = [row[name] for name in ANSWERS if isinstance(row.get(name), list)]
    return [prompt + answer for answer in answers] or [prompt]


def _with_and_without(name: str, row: Row, render: Render) -> Iterator[tuple[Any, Any]]:
    """Yield the text with and without each of the field's values in a row."""
    for conversation in conversations(row)[:1]:
        full = _rendered(render, row, conversation)
        if name in OPTIONAL:
            yield full, _rendered(render, {key: value for key, value in row.items() if key != name}, conversation)
            continue
        for place, message in enumerate(conversation):
            if _has(message, name):
                other = {key: value for key, value in message.items() if key != name}
                other |= {"content": ""} if name in ("content", "tool_calls") and not other.get("content") else {}
                yield full, _rendered(render, row, [*conversation[:place], other, *conversation[place + 1 :]])


def _has(message: Row, name: str) -> bool:
    """Return whether a message has the field, with more than white space."""
    return bool(message.get(name) and str(message[name]).strip())


def _rendered(render: Render, row: Row, conversation: list[Row]) -> str | StageError:
    """Return the text without white space, since a field that changes only white space has no effect."""
    try:
        return "".join(render(row, conversation).split())
    except StageError as error:
        return error  # differs from any text, so that the field counts as having an effect
