"""Detect the format of a set of rows by its column names, and convert its rows to TRL's columns.

    converter = FormatConverter(columns={"prompt": "question"}, format=None)
    row = converter.mapped(row, place)        # raises RowError
    converter.format.name, converter.format.kind, converter.changes

The first row decides the format of all. A row's kind is one of

    messages            messages                       a conversation
    prompt_completion   prompt, completion, …          a prompt and its answer
    preference          prompt, chosen, rejected       a prompt, a better and a worse answer
    prompt              prompt, …                      a prompt and the columns that rewards need
    text                text

where prompt, completion, chosen and rejected are either all text or all lists of messages. `tools` and
`chat_template_kwargs` are kept. Other columns are kept where rewards can use them ("…"), and dropped elsewhere.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks.data.source_spec import listed
from tasks.rows.check import COLUMNS, RowError, decoded, type_name
from tasks.rows.stored import OPTIONAL, Row, common_prefix

Note = Callable[[str], None]  # records a change made to a row

_MESSAGE = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "thinking")
_SHAREGPT_ROLES = {"human": "user", "observation": "tool", "function_response": "tool"} | dict.fromkeys(
    ("gpt", "chatgpt", "model"), "assistant"
)
_NOT_SUPPORTED = {  # ignoring these would change the result
    "weight": "leave the turn out, or make it part of the prompt",
    "train": "leave the turn out, or make it part of the prompt",
    "function_call": "use tool_calls, which replaced it",
}
_OPENAI_PREFERENCE = ("input", "preferred_output", "non_preferred_output")


@dataclass(frozen=True)
class Format:
    """A format, detected by its columns."""

    name: str
    kind: str
    columns: tuple[str, ...]
    mapped: Callable[[Row, Note], Row] = lambda row, note: row


def _sharegpt(row: Row, note: Note) -> Row:
    messages, system = row.pop("conversations"), row.pop("system", None)
    if system and isinstance(messages, list):
        messages = [_turn("system", system), *messages]
        note("system -> the first message")
    name = "prompt" if "chosen" in row else "messages"
    note(f"conversations -> {name}")
    return row | {name: messages}


def _openai_preference(row: Row, note: Note) -> Row:
    prompt, chosen, rejected = (row.pop(name) for name in _OPENAI_PREFERENCE)
    if not isinstance(prompt, dict) or "messages" not in prompt:
        raise RowError("input: expected an object with messages")
    note("input.messages, preferred_output, non_preferred_output -> prompt, chosen, rejected")
    tools = {"tools": prompt["tools"]} if prompt.get("tools") else {}
    return row | tools | {"prompt": prompt["messages"], "chosen": chosen, "rejected": rejected}


def _verl(row: Row, note: Note) -> Row:
    model = row.pop("reward_model")
    if not isinstance(model, dict) or "ground_truth" not in model:
        raise RowError("reward_model: expected an object with ground_truth")
    note("reward_model.ground_truth -> ground_truth")
    return row | {"ground_truth": model["ground_truth"]}


def _alpaca(row: Row, note: Note) -> Row:
    texts = {name: row.pop(name, None) or "" for name in ("system", "instruction", "input", "output")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise RowError(f"{name}: text, not {type_name(value)}")
    if row.pop("history", None):
        raise RowError("history: turns before the instruction are not supported; write the row as messages")
    note("instruction, input, output -> prompt (a turn of the user), completion (a turn of the assistant)")
    prompt = [_turn("user", "\n\n".join(filter(None, (texts["instruction"], texts["input"]))))]
    before = [_turn("system", texts["system"])] if texts["system"] else []
    return row | {"prompt": before + prompt, "completion": [_turn("assistant", texts["output"])]}


def _turn(role: str, content: Any) -> Row:
    return {"role": role, "content": content}


FORMATS = (  # the first one whose columns all exist is taken
    Format("sharegpt_preference", "preference", ("conversations", "chosen", "rejected"), _sharegpt),
    Format("openai_preference", "preference", _OPENAI_PREFERENCE, _openai_preference),
    Format("preference", "preference", ("chosen", "rejected")),
    Format("verl", "prompt", ("prompt", "reward_model"), _verl),
    Format("messages", "messages", ("messages",)),
    Format("sharegpt", "messages", ("conversations",), _sharegpt),
    Format("alpaca", "prompt_completion", ("instruction", "output"), _alpaca),
    Format("prompt_completion", "prompt_completion", ("prompt", "completion")),
    Format("prompt", "prompt", ("prompt",)),
    Format("text", "text", ("text",)),
)


class FormatConverter:
    """Converts the rows of one set, and counts the changes."""

    def __init__(self, columns: dict[str, str], format: str | None) -> None:
        self.columns = columns
        self.format = next((known for known in FORMATS if known.name == format), None)
        self.changes: Counter[str] = Counter()  # number of rows by change
        self._explicit = self.format is not None  # given by the recipe, not by the first row
        self._first = ""  # place of the row that decided

    def mapped(self, source: Row, place: str) -> Row:
        """Convert a row to TRL's columns, without validating their values. Raises RowError."""
        notes: set[str] = set()
        row = self._renamed(dict(source), notes.add)
        format = self._format(row)
        row = format.mapped(row, notes.add)
        columns = COLUMNS[format.kind]
        given = {name: _messages(name, row.pop(name), notes.add) for name in columns if name in row}
        if format.kind == "preference":
            given = _with_prompt(given, notes.add)
        given = dict.fromkeys(columns) | _alike(given, notes.add)
        given |= {name: row.pop(name) for name in OPTIONAL if row.get(name) is not None}
        if isinstance(given.get("tools"), str):
            given["tools"] = decoded(given["tools"])
            notes.add("tools: JSON in text -> a list")
        if format.kind not in ("prompt_completion", "prompt"):
            notes |= {f"dropped: {name}" for name in row if row[name] is not None}
            row = {}
        if self.format is None:
            self.format, self._first = format, place
        self.changes.update(notes)
        return given | row

    def _renamed(self, row: Row, note: Note) -> Row:
        for name, old in self.columns.items():
            if old not in row:
                raise RowError(f"no column {old!r}, which `columns` renames to {name}; the row has {listed(list(row))}")
        values = {name: row.pop(old) for name, old in self.columns.items()}
        for name in values:
            if name in row:
                raise RowError(f"column {name!r} already exists, but `columns` renames {self.columns[name]!r} to it")
            note(f"{self.columns[name]} -> {name}")
        return values | row

    def _format(self, row: Row) -> Format:
        columns = listed(list(row))
        if self._explicit and self.format:
            if not row.keys() >= set(self.format.columns):
                needed = ", ".join(self.format.columns)
                raise RowError(f"format: {self.format.name} needs {needed}; the columns are {columns}")
            return self.format
        for one, other in (("chosen", "rejected"), ("rejected", "chosen")):
            if one in row and other not in row:
                raise RowError(f"{one!r} without {other!r}: a preference has both")
        format = next((known for known in FORMATS if row.keys() >= set(known.columns)), None)
        if format is None:
            allowed = "; ".join(", ".join(known.columns) for known in reversed(FORMATS))
            raise RowError(
                f"cannot tell the kind of row: the columns are {columns}. Allowed: {allowed}. Rename one, such as "
                f"columns: {{prompt: {next(iter(row), 'question')}}}"
            )
        if self.format and format != self.format:
            raise RowError(
                f"this row is {format.name}, but {self._first} is {self.format.name}: one format per set; make two "
                "sets, or set `format`"
            )
        return format


def _messages(column: str, value: Any, note: Note) -> Any:
    """Convert a list of messages to the names that chat templates use; return other values unchanged."""
    if isinstance(value, dict) and column in ("completion", "chosen", "rejected"):
        note(f"{column}: one message -> a list of it")
        value = [value]
    if not isinstance(value, list):
        return value
    return [_message(column, place, message, note) for place, message in enumerate(value)]


def _message(column: str, place: int, message: Any, note: Note) -> Any:
    if not isinstance(message, dict):
        return message
    message = {name: value for name, value in message.items() if value is not None}
    for old, new in (("from", "role"), ("value", "content")):
        if old in message and new not in message:
            message[new] = message.pop(old)
            note(f"{column}[].{old} -> {new}")
    for name in message.keys() & _NOT_SUPPORTED.keys():
        raise RowError(f"{column}[{place}]: {name!r} is not supported; {_NOT_SUPPORTED[name]}")
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if isinstance(role, str) and role in _SHAREGPT_ROLES:
        message["role"] = _SHAREGPT_ROLES[role]
        note(f"{column}[].role: {role} -> {message['role']}")
    if isinstance(content, list) and content and all(_is_text(block) for block in content):
        message["content"] = "".join(block["text"] for block in content)
        note(f"{column}[].content: blocks of text -> text")
    if isinstance(calls, list):
        message["tool_calls"] = [_call(call, note) for call in calls]
    for name in message.keys() - set(_MESSAGE):
        note(f"dropped: {column}[].{name}")
    return {name: message[name] for name in _MESSAGE if name in message}


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type", "text") == "text" and isinstance(block.get("text"), str)


def _call(call: Any, note: Note) -> Any:
    """Parse a call's arguments: text in OpenAI's format, an object for chat templates."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    note("tool_calls[].function.arguments: JSON in text -> an object")
    return call | {"function": function | {"arguments": decoded(function["arguments"])}}


def _with_prompt(row: Row, note: Note) -> Row:
    """Split off the prompt of a preference whose two answers both contain it."""
    prompt, chosen, rejected = row.get("prompt"), row["chosen"], row["rejected"]
    if isinstance(chosen, str) and isinstance(rejected, str) and prompt is None:
        at = _common_words(chosen, rejected)
    elif isinstance(chosen, list) and isinstance(rejected, list) and _begins_with_prompt(prompt, chosen):
        at = common_prefix(chosen[:-1], rejected[:-1])
    else:
        return row
    note("the common beginning of chosen and rejected -> prompt")
    return {"prompt": chosen[:at], "chosen": chosen[at:], "rejected": rejected[at:]}


def _begins_with_prompt(prompt: Any, answer: list[Any]) -> bool:
    first = answer[0] if answer else None
    return prompt is None or (isinstance(prompt, str) and isinstance(first, dict) and first.get("role") != "assistant")


def _common_words(one: str, other: str) -> int:
    """Length of the common prefix, in whole words."""
    at = common_prefix(one, other)
    if (one[at : at + 1] or " ").isspace() and (other[at : at + 1] or " ").isspace():
        return at
    return re.search(r"\s*\S*\Z", one[:at]).start()  # type: ignore[union-attr]  # it always matches


def _alike(given: Row, note: Note) -> Row:
    """Convert prompt and answers to lists of messages if any of them is one."""
    if not any(isinstance(value, list) for value in given.values()):
        return given
    texts = {name: value for name, value in given.items() if isinstance(value, str) and name != "messages"}
    for name in texts:
        note(f"{name}: text -> a message")
    return given | {name: [_turn("user" if name == "prompt" else "assistant", text)] for name, text in texts.items()}
