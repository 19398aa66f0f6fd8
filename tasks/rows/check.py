"""Validate rows: roles and their order, types, empty text, and values that JSON or UTF-8 cannot represent.

problems(row, kind)                   messages, one per problem
Columns().problems(row, kind, place)  columns of the kind whose type is not the first row's
Columns().notices()                   further columns that some rows lack, or with several types
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from baton.infra.storage.unique_keys import unique
from baton.tasks.data.json_values import DEEPEST, SURROGATE, Rounded, Unreadable, kind_of
from baton.tasks.rows.stored import ANSWERS, OPTIONAL, TRAIN, Row

LONE = "a lone surrogate, which UTF-8 cannot represent; fix the text where it was cut"
MOST_DIGITS = 17  # significant digits of a float of 64 bits
ROLES = ("system", "developer", "user", "assistant", "tool")
COLUMNS = {  # columns by kind of row
    "messages": ("messages",),
    "prompt_completion": ("prompt", "completion"),
    "text": ("text",),
    "preference": ("prompt", "chosen", "rejected"),
    "prompt": ("prompt",),
}
# arguments of Transformers' apply_chat_template that are not template variables, or that the row itself sets
_RENDERING = {
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "conversations", "max_length",
    "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize",
    "tokenizer_kwargs", "tools", "truncation",
}  # fmt: skip
# roles that may follow a role; "call" is an assistant's turn that calls tools
_NEXT = {
    "start": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
    "call": ("tool",),
    "tool": ("assistant", "tool"),
}


class RowError(ValueError):
    """An invalid row; each of `args` is one problem."""


def problems(row: Row, kind: str) -> Iterator[str]:
    """Validate the columns of this kind in a row. The others are JSON values already (formats.py)."""
    validated = {name: row[name] for name in (*COLUMNS[kind], *OPTIONAL) if name in row}
    faults = list(_values(validated))
    for name in COLUMNS[kind]:
        faults += [] if isinstance(row.get(name), Unreadable) else _column(name, row.get(name), kind)
    if kind == "preference" and row.get("chosen") == row.get("rejected"):
        faults.append("rejected: must differ from chosen")
    if "tools" in row:
        faults += _functions("tools", row["tools"])
    if not isinstance(options := row.get("chat_template_kwargs", {}), dict):
        faults.append(f"chat_template_kwargs: an object, not {type_name(options)}")
    else:
        faults += [
            f"chat_template_kwargs.{name}: a variable of the chat template, not an argument of apply_chat_template, "
            "which says what is done with the text; leave it out"
            for name in options
            if name in _RENDERING
        ]
    yield from dict.fromkeys(faults)


def type_name(value: Any) -> str:
    """The name of a value's type in JSON."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), kind_of(value))


def decoded(text: str) -> Any:
    """Parse JSON; return the text itself if it isn't JSON. Raises RowError for a key that occurs twice."""
    try:
        return DECODER.decode(text)
    except RowError:
        raise
    except (ValueError, RecursionError):
        return text


def _unique(pairs: list[tuple[str, Any]]) -> Row:
    try:
        return unique(pairs)
    except ValueError as error:
        raise RowError(f"key {error}") from error


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise RowError(f"the number {text:.40} is beyond a float of 64 bits; write it as text")
    if len(text) > MOST_DIGITS and Decimal(text) != Decimal(repr(value)):
        return Rounded(value)
    return value


DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_float)


class Columns:
    """The columns of a set. Those of its kind have one type each; others, which only rewards use, may have several."""

    def __init__(self) -> None:
        self._types: dict[
            str, tuple[str, str]
        ] = {}  # by column of the kind: its type, the place of the row that set it
        self._counts: dict[str, Counter[str]] = {}  # by column: number of rows by type
        self._rows = 0

    @property
    def names(self) -> list[str]:
        """The columns without the optional ones."""
        return list(self._counts)

    def problems(self, row: Row, kind: str, place: str) -> Iterator[str]:
        for name in COLUMNS[kind]:
            is_kind, where = self._types.setdefault(name, (type_name(row[name]), place))
            if type_name(row[name]) != is_kind:
                yield f"{name}: {is_kind}, as in {where}, not {type_name(row[name])}"

    def count(self, row: Row) -> None:
        """Count a valid row."""
        self._rows += 1
        for name, value in row.items():
            if name not in OPTIONAL:
                self._counts.setdefault(name, Counter())[type_name(value)] += 1

    def notices(self) -> Iterator[str]:
        """Columns that rewards may not be prepared for."""
        for name, types in self._counts.items():
            if types.total() < self._rows:
                yield f"column {name}: missing in {self._rows - types.total():,} of {self._rows:,} rows"
            kinds = [f"{number:,} {kind}" for kind, number in types.most_common() if kind != "null"]
            if len(kinds) > 1:
                yield f"column {name}: values of several types: {', '.join(kinds)}"


def _column(name: str, value: Any, kind: str) -> Iterator[str]:
    conversational = name == "messages"
    if isinstance(value, str) and not conversational:
        if not value.strip():
            yield f"{name}: non-empty text expected"
        elif kind != "text" and _holds_messages(value):
            yield f"{name}: a list of messages, not text that holds JSON: decode it"
    elif isinstance(value, list) and kind != "text":
        yield from _conversation(name, value)
    else:
        allowed = "a list of messages" if conversational else "text" if kind == "text" else "text or a list of messages"
        is_json = isinstance(value, str) and isinstance(decoded(value), list | dict)
        yield f"{name}: {allowed}, not {type_name(value)}{' that holds JSON: decode it' if is_json else ''}"


def _holds_messages(text: str) -> bool:
    """Return whether a text is a list of messages as JSON, whose quotes and braces would be learned."""
    if not text.lstrip().startswith("["):
        return False
    found = decoded(text)
    return isinstance(found, list) and bool(found) and all(isinstance(each, dict) and "role" in each for each in found)


def _conversation(name: str, messages: list[Any]) -> Iterator[str]:
    """Validate each message; then, if all are valid, the order of roles."""
    faults = [fault for place, message in enumerate(messages) for fault in _message(f"{name}[{place}]", message)]
    if faults:
        yield from faults
        return
    learned = [message.get(TRAIN, True) for message in messages if message["role"] == "assistant"]
    if name == "messages" and not any(learned):
        yield f"{name}: {'a turn that is to be learned' if learned else 'at least one assistant turn'} expected"
        return
    if not messages:
        yield f"{name}: at least one message expected"
        return
    if name in ANSWERS and len(messages) > 1:  # a loss on all of it would teach the user's turns and tools' results
        fix = "write the conversation as messages" if name == "completion" else "move what both share to the prompt"
        yield f"{name}: one turn of the assistant, as all of it is learned, not {len(messages)}; {fix}, or leave it out"
        return
    last = "user" if name in ANSWERS else "start"
    for place, message in enumerate(messages):
        role = message["role"]
        if role in ("system", "developer") and place == 0 and name not in ANSWERS:
            continue
        if role not in _NEXT[last]:
            yield f"{name}[{place}].role: {' or '.join(_NEXT[last])}, not {role}{_why(role, last)}"
            return
        last = "call" if message.get("tool_calls") else role
    closed = last in ("user", "tool") if name == "prompt" else last in ("assistant", "call")
    if not closed:
        allowed = "the user's or a tool's" if name == "prompt" else "the assistant's"
        yield f"{name}[{len(messages) - 1}].role: the last turn must be {allowed}, not {messages[-1]['role']}"


def _why(role: str, last: str) -> str:
    """The reason why a role is out of order, with the fix."""
    if role == "tool":
        return ": the turn before it has no tool_calls (a call that is written in its text is not read)"
    if role in ("system", "developer"):
        return ": one system prompt, as the first message; join several"
    if last == "start":
        return ": a conversation begins with the user; leave a greeting out"
    return ": join turns of one role" if role == last else ""


def _message(place: str, message: Any) -> Iterator[str]:
    if not isinstance(message, dict):
        yield f"{place}: an object with role and content, not {type_name(message)}"
        return
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role not in ROLES:
        yield f"{place}.role: one of {', '.join(ROLES)}, not {'null' if role is None else repr(role)[:40]}"
    if content is not None and not isinstance(content, str):
        blocks = [block.get("type") for block in content if isinstance(block, dict)] if type(content) is list else []
        kinds = f" of {', '.join(sorted({repr(kind) for kind in blocks}))}" if blocks else ""
        yield f"{place}.content: text, not {type_name(content)}{kinds}"
    elif not (content or "").strip() and not calls and role != "tool":
        yield f"{place}.content: non-empty text expected"
    for name in message.keys() - {"role", "content", "tool_calls", TRAIN}:
        if not isinstance(message[name], str | None):
            yield f"{place}.{name}: text, not {type_name(message[name])}"
    if calls is not None:
        yield from _functions(f"{place}.tool_calls", calls)
        if role != "assistant":
            yield f"{place}.tool_calls: only the assistant may call tools"


def _functions(place: str, value: Any) -> Iterator[str]:
    """Validate tools or tool calls: both have a function with a name; a call's arguments are an object."""
    if not isinstance(value, list):
        yield f"{place}: a list, not {type_name(value)}"
        return
    for number, item in enumerate(value):
        function = item.get("function", item) if isinstance(item, dict) else {}
        named = isinstance(function, dict) and isinstance(function.get("name"), str)
        if not named or not isinstance(function.get("arguments", {}), dict):
            yield f"{place}[{number}]: expected a function's name, with a call's arguments as an object"


def lone_surrogate(value: Any) -> str:
    """The problem of the first text in a JSON value that UTF-8 cannot represent; "" if there is none."""
    return next((fault for fault in _values(value) if LONE in fault), "")


def _values(value: Any, place: str = "", depth: int = 0) -> Iterator[str]:
    """Find values at any depth that JSON or UTF-8 cannot represent."""
    if depth > DEEPEST:
        yield f"{place[:40]}…: nested too deeply, more than {DEEPEST} levels"
    elif isinstance(value, str):
        if SURROGATE.search(value):
            yield f"{place}: {LONE}"
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _values(name, place, depth + 1)
            yield from _values(inner, f"{place}.{name}" if place else str(name), depth + 1)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _values(inner, f"{place}[{number}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{place}: a finite number, not {value}"
    elif value is not None and type(value) not in (bool, int, float, Rounded):
        why = value.why if isinstance(value, Unreadable) else ""
        yield f"{place}: {why or f'text, a number, true, false, null, a list or an object, not {type_name(value)}'}"
