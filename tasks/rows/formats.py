"""Detect the format of a set of rows by its column names, and convert its rows to TRL's columns.

    converter = FormatConverter(columns={"prompt": "question", "image": None}, format=None)
    row = converter.mapped(row, place)        # raises RowError
    converter.format.name, converter.format.kind, converter.changes

The first row decides the format of all; a column that is null in all of the first rows counts as missing. A row's kind
is one of

    messages            messages                       a conversation
    prompt_completion   prompt, completion, …          a prompt and its answer
    preference          prompt, chosen, rejected       a prompt, a better and a worse answer
    prompt              prompt, …                      a prompt and the columns that rewards need
    text                text

where prompt, completion, chosen and rejected are either all text or all lists of messages. `tools` and
`chat_template_kwargs` are kept, a conversation's `label` and `kto_tag` too, and a text in `system` becomes the first
message. Other columns are kept where rewards can use them ("…"), in JSON's terms (tasks/data/json_values.py); what JSON
cannot represent is dropped. Elsewhere they are dropped, or the row is refused if they say that it is not to be learned
(marks.py).
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from baton.tasks.data.json_values import SURROGATE, TO_NULL, HalfPair, NotJson, json_value
from baton.tasks.data.source_spec import listed
from baton.tasks.rows import messages
from baton.tasks.rows.check import COLUMNS, LONE, RowError, decoded, type_name
from baton.tasks.rows.marks import LABELS, TURN, labels, refusal
from baton.tasks.rows.messages import Note, turn
from baton.tasks.rows.stored import OPTIONAL, Row, common_prefix

_OPENAI_PREFERENCE = ("input", "preferred_output", "non_preferred_output")
_PROMPTS = ("question", "instruction", "query", "input", "context")  # usual names of a prompt's column


@dataclass(frozen=True)
class Format:
    """A format, detected by its columns."""

    name: str
    kind: str
    columns: tuple[str, ...]
    mapped: Callable[[Row, Note], Row] = lambda row, note: row


def _sharegpt(row: Row, note: Note) -> Row:
    name = "prompt" if "chosen" in row else "messages"
    note(f"conversations -> {name}")
    return row | {name: row.pop("conversations")}


def _openai_preference(row: Row, note: Note) -> Row:
    prompt, chosen, rejected = (row.pop(name) for name in _OPENAI_PREFERENCE)
    if not isinstance(prompt, dict) or "messages" not in prompt:
        raise RowError("input: expected an object with messages")
    note("input.messages, preferred_output, non_preferred_output -> prompt, chosen, rejected")
    for name in sorted(prompt.keys() - {"messages", "tools"}):
        note(f"dropped: input.{name}")
    tools = {"tools": prompt["tools"]} if prompt.get("tools") else {}
    return row | tools | {"prompt": prompt["messages"], "chosen": chosen, "rejected": rejected}


def _verl(row: Row, note: Note) -> Row:
    model = row.pop("reward_model")
    if not isinstance(model, dict) or "ground_truth" not in model:
        raise RowError("reward_model: expected an object with ground_truth")
    note("reward_model.ground_truth -> ground_truth")
    for name in sorted(model.keys() - {"ground_truth"}):
        note(f"dropped: reward_model.{name}")
    return row | {"ground_truth": model["ground_truth"]}


def _alpaca(row: Row, note: Note) -> Row:
    texts = {name: row.pop(name, None) or "" for name in ("instruction", "input", "output")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise RowError(f"{name}: text, not {type_name(value)}")
    if row.pop("history", None):
        raise RowError("history: turns before the instruction are not supported; write the row as messages")
    note("instruction, input, output -> prompt (a turn of the user), completion (a turn of the assistant)")
    prompt = [turn("user", "\n\n".join(filter(None, (texts["instruction"], texts["input"]))))]
    return row | {"prompt": prompt, "completion": [turn("assistant", texts["output"])]}


FORMATS = (  # the first one whose columns all exist is used
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

    def __init__(self, columns: Mapping[str, str | None], format: str | None) -> None:
        self.columns = {name: old for name, old in columns.items() if old is not None}
        self.left_out = {name for name, old in columns.items() if old is None}
        self.absent = {*self.left_out}  # left-out columns that no row has had
        self.format = next((known for known in FORMATS if known.name == format), None)
        self.changes: Counter[str] = Counter()  # number of rows by change
        self.seen: set[str] = set()  # columns that the first rows have, and that are not null in all of them
        self._explicit = self.format is not None  # given by the recipe, not by the first row
        self._first = ""  # place of the row that decided
        self._usable: set[str] = set()  # further columns that have had a JSON value
        self._unusable: dict[str, str] = {}  # columns whose first values are not JSON -> the note about them

    def mapped(self, source: Row, place: str) -> Row:
        """Convert a row to TRL's columns, without validating their values. Raises RowError."""
        notes: set[str] = set()
        note = notes.add
        if wrong := [name for name in source if SURROGATE.search(str(name))]:
            raise RowError(f"the column {wrong[0]!r}: {LONE}")
        self.absent -= source.keys()
        row = self._renamed({name: value for name, value in source.items() if name not in self.left_out}, note)
        format = self._format(row)
        _refuse_alike(row, format)
        before = {**row}
        row = format.mapped(row, note)
        for name in before.keys() & row.keys():
            if before[name] is not None and row[name] is not before[name] and row[name] != before[name]:
                raise RowError(
                    f"column {name!r} already exists, but the format {format.name} makes it of "
                    f"{', '.join(format.columns)}; leave one out, such as columns: {{{name}: null}}"
                )
        columns = COLUMNS[format.kind]
        given = {name: messages.converted(name, row.pop(name), note) for name in columns if name in row}
        if format.kind == "preference":
            given = _with_prompt(given, row, note)
        given = _with_system(dict.fromkeys(columns) | given, row, note)
        given = _alike(given, note)
        options = {name: value for name in OPTIONAL if not _is_missing(value := row.pop(name, None))}
        if "tools" in options:
            options["tools"] = messages.tools(options["tools"], note)
        if isinstance(kwargs := options.get("chat_template_kwargs"), str):
            options["chat_template_kwargs"] = decoded(kwargs)
            note("chat_template_kwargs: JSON in text -> an object")
        if format.kind in ("prompt_completion", "prompt"):
            row = self._for_rewards(row, notes)
        else:
            verdicts = labels(row) if format.kind == "messages" else {}
            row = {name: value for name, value in row.items() if name not in verdicts}
            if why := refusal(row, format.kind):
                raise RowError(why)
            notes |= {f"dropped: {name}" for name in row if row[name] is not None}
            row = verdicts
        if self.format is None:
            self.format, self._first = format, place
        self.changes.update(notes)
        return given | options | row

    def _for_rewards(self, row: Row, notes: set[str]) -> Row:
        """The further columns as JSON values. A value that JSON cannot represent becomes null; a column that has had no
        other values is dropped."""
        converted: Row = {}
        for name, value in row.items():
            try:
                converted[name], changes = json_value(value)
                notes |= {f"{name}: {change}" for change in changes}
            except HalfPair as error:
                raise RowError(f"{name}: {LONE}") from error
            except NotJson as error:
                if name in self._usable:
                    converted[name] = None
                    notes.add(f"{name}: {error}{TO_NULL}")
                else:
                    self._unusable.setdefault(name, f"dropped: {name}: {error}, which JSON cannot represent")
            if name in self._unusable:
                converted.pop(name, None)
                notes |= {self._unusable[name]} if value is not None else set()
            elif converted[name] is not None:
                self._usable.add(name)
        return converted

    def _renamed(self, row: Row, note: Note) -> Row:
        for name, old in self.columns.items():
            if old not in row:
                raise RowError(f"no column {old!r}, which `columns` renames to {name}; the row has {listed(list(row))}")
        values = {name: row[old] for name, old in self.columns.items()}  # an old column may have several new names
        row = {name: value for name, value in row.items() if name not in self.columns.values()}
        self.seen |= {name for name, old in self.columns.items() if old in self.seen}
        for name in values:
            if name in row:
                raise RowError(f"column {name!r} already exists, but `columns` renames {self.columns[name]!r} to it")
            if name != self.columns[name]:
                note(f"{self.columns[name]} -> {name}")
        return values | row

    def _format(self, row: Row) -> Format:
        columns = listed(list(row))
        if self.format and row.keys() >= set(self.format.columns) and (self._explicit or self._is_of(row, self.format)):
            return self.format
        if self._explicit and self.format:
            needed = ", ".join(self.format.columns)
            raise RowError(f"format: {self.format.name} needs {needed}; the columns are {columns}")
        present = {name for name, value in row.items() if value is not None or name in self.seen}
        for one, other in (("chosen", "rejected"), ("rejected", "chosen")):
            if one in present and other not in row:
                raise RowError(f"{one!r} without {other!r}: a preference has both")
        format = _detected(present) or _detected(row.keys())
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

    def _is_of(self, row: Row, format: Format) -> bool:
        """Return whether a row with the columns of the set's format, some perhaps null, has no other format."""
        return _detected({name for name, value in row.items() if value is not None or name in format.columns}) == format


def _refuse_alike(row: Row, format: Format) -> None:
    """Raise RowError for two columns whose names differ only in case, of which Baton reads one."""
    read = {*format.columns, *COLUMNS[format.kind], *OPTIONAL, *LABELS, *TURN, "system"}
    names: dict[str, str] = {}
    for name in map(str, row):
        if (other := names.setdefault(name.lower(), name)) != name and {name, other} & read:
            unread = next((each for each in (name, other) if each not in read), name)
            raise RowError(
                f"columns {other!r} and {name!r} differ in upper and lower case alone; leave one out, such as "
                f"columns: {{{unread}: null}}"
            )


def _detected(columns: Collection[str]) -> Format | None:
    return next((known for known in FORMATS if {*columns} >= set(known.columns)), None)


def _is_missing(value: Any) -> bool:
    """Return whether a value is null or NaN, which pandas has for a value that a row lacks."""
    return value is None or (isinstance(value, float) and value != value)


def _with_prompt(given: Row, row: Row, note: Note) -> Row:
    """Split off the prompt of a preference whose two answers both contain it. Raises RowError if they begin with
    another prompt, or if another column may be the prompt: then the common part of two answers is none."""
    prompt, chosen, rejected = given.get("prompt"), given["chosen"], given["rejected"]
    complete = isinstance(chosen, list) and isinstance(rejected, list) and _are_conversations(chosen, rejected)
    if prompt is None and not complete and (column := next((name for name in _PROMPTS if row.get(name)), None)):
        raise RowError(
            f"prompt: none, but a column {column!r}: rename it, columns: {{prompt: {column}}}, or leave it out if "
            f"chosen and rejected contain the prompt: columns: {{{column}: null}}"
        )
    if isinstance(chosen, str) and isinstance(rejected, str) and prompt is None:
        at = _common_words(chosen, rejected)
    elif complete or (isinstance(chosen, list) and isinstance(rejected, list) and prompt is None):
        at = common_prefix(chosen[:-1], rejected[:-1])
        if not _is_in(prompt, chosen[:at]):
            raise RowError(
                "prompt: is not what chosen and rejected begin with; leave it out, or leave the turns that they begin "
                "with out of both"
            )
    else:
        return given
    if not at:
        raise RowError("prompt: none, and chosen and rejected have no common beginning that could be the prompt")
    note("the common beginning of chosen and rejected -> prompt")
    return {"prompt": chosen[:at], "chosen": chosen[at:], "rejected": rejected[at:]}


def _are_conversations(chosen: list[Any], rejected: list[Any]) -> bool:
    """Return whether the answers are conversations from their beginning, not continuations of a prompt."""
    first = [answer[0] for answer in (chosen, rejected) if answer and isinstance(answer[0], dict)]
    return any(each.get("role") not in ("assistant", "tool") for each in first)


def _is_in(prompt: Any, turns: list[Any]) -> bool:
    """Return whether a conversation begins with this prompt: a list of turns, perhaps after a system prompt, or the
    text of a user's turn."""
    if prompt is None:
        return True
    if isinstance(prompt, list):
        return prompt in (turns[: len(prompt)], turns[1 : len(prompt) + 1])
    texts = [each.get("content") for each in turns if isinstance(each, dict) and each.get("role") == "user"]
    return isinstance(prompt, str) and any(isinstance(text, str) and text.split() == prompt.split() for text in texts)


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
    return given | {name: [turn("user" if name == "prompt" else "assistant", text)] for name, text in texts.items()}


def _with_system(given: Row, row: Row, note: Note) -> Row:
    """Make a text in the column `system` the first message of the conversation or prompt."""
    name = "messages" if "messages" in given else "prompt"
    text = row.get("system")
    if not isinstance(text, str) or not text.strip() or not isinstance(given.get(name), str | list):
        return given
    del row["system"]
    before = given[name] if isinstance(given[name], list) else [turn("user", given[name])]
    if before and isinstance(before[0], dict) and before[0].get("role") in ("system", "developer"):
        raise RowError(f"system: {name} begins with a system prompt already; leave one out: columns: {{system: null}}")
    note("system -> the first message")
    return given | {name: [turn("system", text), *before]}
