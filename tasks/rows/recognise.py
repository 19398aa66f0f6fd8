"""What format a set of rows has, by the names of its columns, and the same rows in TRL's columns.

    recognised = Recognised(columns={"prompt": "question"}, format=None)
    row = recognised.mapped(row, place)        # raises Wrong
    recognised.kind, recognised.format, recognised.mappings, recognised.dropped

The first row that is recognised decides for all. A row's kind is one of

    messages            messages                       a conversation
    prompt_completion   prompt, completion, …          a prompt and its answer
    preference          prompt, chosen, rejected       a prompt, a better and a worse answer
    prompt              prompt, …                      a prompt and what its rewards want to know
    text                text

where prompt, completion, chosen and rejected are text or, all of them, lists of messages. `tools` and
`chat_template_kwargs` are kept; further columns are kept where rewards can see them (the rows with "…"), and dropped
and counted elsewhere.
"""

import json
import os.path
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tasks.data.source_spec import listed
from tasks.rows.check import COLUMNS, said
from tasks.rows.stored import OWN_COLUMNS, Row

_EVERYWHERE = ("tools", "chat_template_kwargs")
_WITH_REWARDS = ("prompt_completion", "prompt")
_MESSAGE = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "thinking")
_SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "observation": "tool",
    "function_response": "tool",
}
_NOT_SUPPORTED = {  # what would change the result if it was passed over
    "weight": "leave the turn out, or make it part of the prompt",
    "train": "leave the turn out, or make it part of the prompt",
    "function_call": "tool_calls is what it is called today",
}


class Wrong(ValueError):
    """A row that is not what it should be; the message says what is wanted."""


@dataclass
class Changes:
    """What was done to a row."""

    mapped: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)

    def map(self, what: str) -> None:
        self.mapped.add(what)


@dataclass(frozen=True)
class Format:
    """A format by the columns that it is recognised by."""

    name: str
    kind: str
    columns: tuple[str, ...]
    mapped: Callable[[Row, Changes], Row] = lambda row, changes: row


def _openai_preference(row: Row, changes: Changes) -> Row:
    given = row.pop("input")
    if not isinstance(given, dict):
        raise Wrong(f"input: an object with messages, not {said(given)}")
    row |= {"prompt": given.get("messages")} | {name: given[name] for name in ("tools",) if name in given}
    row |= {"chosen": row.pop("preferred_output"), "rejected": row.pop("non_preferred_output")}
    changes.map("input.messages, preferred_output, non_preferred_output -> prompt, chosen, rejected")
    return row


def _sharegpt(row: Row, changes: Changes) -> Row:
    messages = row.pop("conversations")
    system = row.pop("system", None)
    if system and isinstance(messages, list):
        messages = [{"role": "system", "content": system}, *messages]
        changes.map("system -> messages[0]")
    if "chosen" in row:
        changes.map("conversations -> prompt")
        return row | {"prompt": messages}
    changes.map("conversations -> messages")
    return row | {"messages": messages}


def _verl(row: Row, changes: Changes) -> Row:
    model = row.pop("reward_model")
    if not isinstance(model, dict) or "ground_truth" not in model:
        raise Wrong("reward_model: an object with ground_truth is wanted")
    changes.map("reward_model.ground_truth -> ground_truth")
    return row | {"ground_truth": model["ground_truth"]}


def _alpaca(row: Row, changes: Changes) -> Row:
    instruction, given, output = row.pop("instruction"), row.pop("input", None), row.pop("output")
    system, history = row.pop("system", None), row.pop("history", None) or []
    for name, value in (("instruction", instruction), ("input", given or ""), ("output", output)):
        if not isinstance(value, str):
            raise Wrong(f"{name}: text, not {said(value)}")
    try:
        turns = [turn for question, answer in history for turn in (_turn("user", question), _turn("assistant", answer))]
    except (TypeError, ValueError) as error:
        raise Wrong("history: a list of [question, answer] is wanted") from error
    if system:
        turns = [_turn("system", system), *turns]
    changes.map("instruction, input, output -> prompt (a turn of the user), completion (a turn of the assistant)")
    question = f"{instruction}\n\n{given}" if given else instruction
    return row | {"prompt": [*turns, _turn("user", question)], "completion": [_turn("assistant", output)]}


def _turn(role: str, content: Any) -> Row:
    return {"role": role, "content": content}


FORMATS = (  # the first whose columns are all there
    Format(
        "openai_preference", "preference", ("input", "preferred_output", "non_preferred_output"), _openai_preference
    ),
    Format("sharegpt_preference", "preference", ("conversations", "chosen", "rejected"), _sharegpt),
    Format("preference", "preference", ("chosen", "rejected")),
    Format("verl", "prompt", ("prompt", "reward_model"), _verl),
    Format("messages", "messages", ("messages",)),
    Format("sharegpt", "messages", ("conversations",), _sharegpt),
    Format("alpaca", "prompt_completion", ("instruction", "output"), _alpaca),
    Format("prompt_completion", "prompt_completion", ("prompt", "completion")),
    Format("prompt", "prompt", ("prompt",)),
    Format("text", "text", ("text",)),
)
BY_NAME = {each.name: each for each in FORMATS}


class Recognised:
    """A set's format, and what was done to its rows."""

    def __init__(self, columns: dict[str, str], format: str | None) -> None:
        self.columns = columns
        self.asked = BY_NAME[format] if format else None
        self.format = self.asked
        self.mapped_rows: Counter[str] = Counter()  # by what was mapped
        self.dropped: Counter[str] = Counter()  # rows, by column
        self._first = ""  # the place of the row that decided

    @property
    def name(self) -> str:
        return self.format.name if self.format else ""

    @property
    def kind(self) -> str:
        return self.format.kind if self.format else ""

    def mapped(self, found: Row, place: str) -> Row:
        """A row in TRL's columns, their values unchecked. Raises Wrong."""
        changes = Changes()
        row = self._renamed(found, changes)
        format = self._format(row)
        row = format.mapped(row, changes)
        columns = COLUMNS[format.kind]
        row |= {name: _messages(name, row[name], changes) for name in columns if name in row}
        if format.kind == "preference":
            row |= _with_prompt(row, changes)
        row |= _alike({name: row[name] for name in columns if name in row}, changes)
        if isinstance(row.get("tools"), str):
            row["tools"] = _decoded(row["tools"])
            changes.map("tools: JSON in text -> a list")
        if self.format is None:
            self.format, self._first = format, place
        kept = {
            name: row.pop(name) for name in (*columns, *_EVERYWHERE) if row.get(name) is not None or name in columns
        }
        rewards = (
            {} if format.kind not in _WITH_REWARDS else {name: row[name] for name in row if name not in OWN_COLUMNS}
        )
        self.mapped_rows.update(changes.mapped)
        self.dropped.update(changes.dropped | {name for name in row.keys() - rewards.keys() if row[name] is not None})
        return kept | rewards

    def record(self) -> dict[str, Any]:
        """For rows.json."""
        return {
            "mapped": dict(sorted(self.mapped_rows.items())),
            "dropped_columns": dict(sorted(self.dropped.items())),
        }

    def _renamed(self, row: Row, changes: Changes) -> Row:
        row = dict(row)
        for name, old in self.columns.items():
            if old not in row:
                raise Wrong(f"no column {old!r}, which `columns` renames to {name}; it has {listed(list(row))}")
        values = {name: row.pop(old) for name, old in self.columns.items()}
        for name in values:
            if name in row:
                raise Wrong(f"column {name!r} is there already, and `columns` renames {self.columns[name]!r} to it")
            changes.map(f"{self.columns[name]} -> {name}")
        return values | row

    def _format(self, row: Row) -> Format:
        if self.asked:
            if not row.keys() >= set(self.asked.columns):
                wanted = ", ".join(self.asked.columns)
                raise Wrong(f"format: {self.asked.name} wants {wanted}; its columns are {listed(list(row))}")
            return self.asked
        for one, other in (("chosen", "rejected"), ("rejected", "chosen")):
            if one in row and other not in row:
                raise Wrong(f"{one!r} without {other!r}: a preference has both")
        found = next((each for each in FORMATS if row.keys() >= set(each.columns)), None)
        if found is None:
            raise Wrong(
                f"no column that says what kind of row it is: its columns are {listed(list(row))}. Wanted: "
                f"{'; '.join(', '.join(each.columns) for each in reversed(FORMATS))}. Rename one, as in "
                f"columns: {{prompt: {next(iter(row), 'question')}}}"
            )
        if self.format and found != self.format:
            raise Wrong(
                f"this row is {found.name}, but {self._first} is {self.format.name}: one format per set; make two sets, "
                "or say which one is meant with `format`"
            )
        return found


def _messages(column: str, value: Any, changes: Changes) -> Any:
    """A list of messages, each in the words of chat templates; anything else as it is."""
    if isinstance(value, dict) and column in ("completion", "chosen", "rejected"):
        changes.map(f"{column}: one message -> a list of it")
        value = [value]
    if not isinstance(value, list):
        return value
    return [_message(f"{column}[{place}]", message, changes) for place, message in enumerate(value)]


def _message(place: str, message: Any, changes: Changes) -> Any:
    if not isinstance(message, dict):
        return message
    column = place.partition("[")[0]
    message = {name: value for name, value in message.items() if value is not None}
    for old, new in (("from", "role"), ("value", "content")):
        if old in message and new not in message:
            message = {new: message.pop(old)} | message
            changes.map(f"{column}[].{old} -> {new}")
    for name, way_out in _NOT_SUPPORTED.items():
        if name in message:
            raise Wrong(f"{place}: {name!r} is not supported; {way_out}")
    role, content = message.get("role"), message.get("content")
    if isinstance(role, str) and role in _SHAREGPT_ROLES:
        message["role"] = _SHAREGPT_ROLES[role]
        changes.map(f"{column}[].role: {role} -> {message['role']}")
    if isinstance(content, list) and content and all(_is_text(block) for block in content):
        message["content"] = "".join(block["text"] for block in content)
        changes.map(f"{column}[].content: blocks of text -> text")
    if isinstance(message.get("tool_calls"), list):
        message["tool_calls"] = [_call(call, changes) for call in message["tool_calls"]]
    changes.dropped |= {f"{column}[].{name}" for name in message.keys() - set(_MESSAGE)}
    return {name: message[name] for name in _MESSAGE if name in message}


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type", "text") == "text" and isinstance(block.get("text"), str)


def _call(call: Any, changes: Changes) -> Any:
    """OpenAI has a call's arguments as text; chat templates want the object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    arguments = _decoded(function["arguments"])
    if not isinstance(arguments, dict):
        return call
    changes.map("tool_calls[].function.arguments: JSON in text -> an object")
    return call | {"function": function | {"arguments": arguments}}


def _decoded(text: str) -> Any:
    """JSON's value; the text itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _with_prompt(row: Row, changes: Changes) -> Row:
    """A preference whose prompt is the common beginning of both answers, with the prompt by itself."""
    prompt, chosen, rejected = row.get("prompt"), row["chosen"], row["rejected"]
    if isinstance(chosen, str) and isinstance(rejected, str) and prompt is None:
        at = _common(chosen, rejected)
    elif isinstance(chosen, list) and isinstance(rejected, list) and _begins_with_prompt(prompt, chosen):
        at = len(os.path.commonprefix([chosen[:-1], rejected[:-1]]))
    else:
        return {}
    changes.map("the common beginning of chosen and rejected -> prompt")
    return {"prompt": chosen[:at], "chosen": chosen[at:], "rejected": rejected[at:]}


def _begins_with_prompt(prompt: Any, answer: list[Any]) -> bool:
    first = answer[0] if answer else None
    return prompt is None or (isinstance(prompt, str) and isinstance(first, dict) and first.get("role") != "assistant")


def _common(one: str, other: str) -> int:
    """Where two texts part, at the end of a word."""
    at = len(os.path.commonprefix([one, other]))
    if (one[at : at + 1] or " ").isspace() and (other[at : at + 1] or " ").isspace():
        return at
    return re.search(r"\s*\S*\Z", one[:at]).start()  # type: ignore[union-attr]  # it always matches


def _alike(given: Row, changes: Changes) -> Row:
    """Prompt and answers as lists of messages if one of them is one."""
    if not any(isinstance(value, list) for value in given.values()):
        return given
    changed = {name: value for name, value in given.items() if isinstance(value, str) and name != "messages"}
    for name in changed:
        changes.map(f"{name}: text -> a message")
    return given | {name: [_turn("user" if name == "prompt" else "assistant", text)] for name, text in changed.items()}
