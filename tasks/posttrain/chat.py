"""Choose the chat template that renders conversations, and find the tokens that end a turn.

    chat = chat_of(tokenizer, tools)     for conversations with or without tools
    chat.template                        the model's own template, or Baton's
    chat.marked                          a template that renders the same and marks the assistant's turns, or None;
                                         `loss: assistant` needs it
    chat.end                             id of the token that ends a turn, and generation
    chat.write(directory)                the chat template that a model tuned on chat needs beside its weights

A tokenizer without a template gets ChatML (chatml.jinja), and so does one whose only template is ChatML without marks
or tools: conversations render as before. Marks are those of TRL's version of a model family's template; the model keeps
its own template. This module does not import torch, since preflight imports it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding

from baton.tasks.models.tokenizer_files import DEFAULT, TEMPLATE, WITH_TOOLS
from baton.tasks.models.tokenizers import beginning, parsed
from baton.tasks.posttrain.trl_hooks.templates import trl_templates
from baton.tasks.rows.stored import Row

IM_END = "<|im_end|>"
CHATML = Path(__file__).with_name("chatml.jinja")

QUESTION = {"role": "user", "content": "What is it?"}
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": PARAMETERS}}

_QUESTION = {"role": "user", "content": " What is it? "}
_ANSWER = {"role": "assistant", "content": " It is this. "}
_CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
_PROBES: list[list[Row]] = [
    [_QUESTION],
    [_QUESTION, _ANSWER],
    [{"role": "system", "content": " Be brief. "}, _QUESTION, _ANSWER, _QUESTION, _ANSWER],
    [_QUESTION, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, {"role": "tool", "content": "?"}, _ANSWER],
]
_END_TEXT, _LOOKED_AT = "It is this.", "over there"  # in turns, to find what ends them
_END_TURN: Row = {"role": "assistant", "content": _END_TEXT}
_CALLS: Row = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": {"at": _LOOKED_AT}}}],
}


@dataclass(frozen=True)
class Opening:
    """The messages and options before an assistant's turn."""

    messages: Sequence[Row]
    options: Mapping[str, Any] = field(default_factory=dict)  # options of the template: `tools`, and the row's own


@dataclass(frozen=True)
class Chat:
    template: str
    given: bool  # Baton's template, which is saved with the model
    marked: str | None
    end: int
    end_of_calls: int  # end of a turn with tool calls; in most templates equal to `end`
    prints_end: bool  # if false, `end` is the end-of-text token, which the template does not write

    @property
    def shown(self) -> str:
        return shown(self.template)

    def end_of(self, turn: Row) -> int:
        """Return the token that ends a turn of the assistant."""
        return self.end_of_calls if turn.get("tool_calls") else self.end

    def write(self, directory: Path) -> None:
        """Write the template, if it is Baton's, to a Hugging Face directory."""
        if self.given:
            (directory / TEMPLATE).write_text(self.template)


def shown(template: str) -> str:
    """Return the beginning of a template, for messages."""
    text = " ".join(template.split())
    return text if len(text) <= 80 else text[:79] + "…"


def template_of(tokenizer: Any, tools: bool) -> str | None:
    """Return the tokenizer's template for conversations with or without tools, chosen among several by Transformers'
    rule (tasks/models/tokenizer_files.py)."""
    own = tokenizer.chat_template
    if isinstance(own, dict):
        return str(own[WITH_TOOLS if tools and WITH_TOOLS in own else DEFAULT])
    return own  # type: ignore[no-any-return]


def chat_of(tokenizer: Any, tools: bool = False, like: Opening | None = None) -> Chat:
    """Return the chat of conversations with or without tools. Sets the tokenizer's template if Baton provides one.
    `like`: the beginning of one of these conversations, for a template that rejects others. Raises the template's
    exception if it rejects that one too."""
    original = template_of(tokenizer, tools)
    plain = Opening([QUESTION])
    openings = [Opening([QUESTION], {"tools": [TOOL]}), plain] if tools else [plain]
    openings += [like] if like else []
    opening = next((each for each in openings if original and _answered(tokenizer, original, each)), None)
    if original and like and opening is None:
        _render(tokenizer, original, like.messages, {**like.options, "add_generation_prompt": True})
    opening = opening or openings[0]
    marked = training_template(tokenizer, original, opening.options) if original else chatml(tokenizer)[0]
    template, given = original or str(marked), False
    if not isinstance(tokenizer.chat_template, dict) and marked in chatml(tokenizer):
        template, given = str(marked), True
        tokenizer.chat_template = template
    printed = end_of_turn(tokenizer, template, opening)
    end = tokenizer.eos_token_id if printed is None else printed
    of_calls = _end_of_calls(tokenizer, template, opening, end) if tools else end
    return Chat(template, given, marked, end, of_calls, prints_end=printed is not None)


def has_generation(template: str) -> bool:
    """Return whether a template marks the assistant's turns with {% generation %}."""
    return re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None


def training_template(tokenizer: Any, template: str, options: Mapping[str, Any] | None = None) -> str | None:
    """Return a template with generation marks, or None if no such template is known. It is TRL's marked version of the
    same template, or a marked template that renders some conversations identically. `options`: the options of a
    template that rejects conversations without them."""
    if has_generation(template):
        return template
    for plain, marked in trl_templates().values():
        if template == plain:
            return marked
    candidates = [(marked, _PROBES) for _, marked in trl_templates().values()]
    if "tool" not in template:  # ChatML that ignores tools
        candidates = [(marked, _PROBES[:-1]) for marked in chatml(tokenizer)] + candidates
    needed = {} if _rendered(tokenizer, _PROBES[1], template) else options or {}
    for marked, probes in candidates:
        rendered = [_rendered(tokenizer, probe, template, needed) for probe in probes]
        if rendered[1] and rendered == [_rendered(tokenizer, probe, marked, needed) for probe in probes]:
            return marked
    return None


def end_of_turn(tokenizer: Any, template: str, opening: Opening | None = None) -> int | None:
    """Return the id of the token that ends an assistant turn, where a served model stops. None if the template ends the
    turn with ordinary text or nothing, or prints no turn of the assistant."""
    text = _answered(tokenizer, template, opening or Opening([QUESTION]))
    _, found, behind = (text or "").rpartition(_END_TEXT)
    ids = parsed(tokenizer, behind.lstrip()) if found else []
    return ids[0] if ids and ids[0] in tokenizer.get_added_vocab().values() else None


def _end_of_calls(tokenizer: Any, template: str, opening: Opening, end: int) -> int:
    """Return the id of the token that ends a turn with tool calls: `end`, unless the template ends it with another."""
    text = _rendered(tokenizer, [*opening.messages, _CALLS], template, opening.options) or ""
    _, found, behind = text.rpartition(_LOOKED_AT)
    added = {*tokenizer.get_added_vocab().values()}
    ids = [token for token in parsed(tokenizer, behind) if token in added] if found else []
    return end if end in ids or not ids else ids[-1]


def _answered(tokenizer: Any, template: str, opening: Opening) -> str | None:
    """Render a conversation with a turn of the assistant; None if the template rejects it."""
    return _rendered(tokenizer, [*opening.messages, _END_TURN], template, opening.options)


def rendered_with_marks(
    tokenizer: Any, template: str, conversation: list[Row], /, **options: Any
) -> tuple[str, list[tuple[int, int]]]:
    """Return a conversation's text, and the ranges of its characters that the template marks. This is the first half of
    Transformers' `apply_chat_template(…, return_assistant_tokens_mask=True)` (5.17), which also tokenizes."""
    from transformers.utils.chat_template_utils import render_jinja_template  # the import takes seconds

    options = {**tokenizer.special_tokens_map, **options}
    (text,), (ranges,) = render_jinja_template(
        [conversation], chat_template=template, return_assistant_tokens_mask=True, **options
    )
    return text, ranges


def marked_tokens(tokens: Encoding, ranges: list[tuple[int, int]]) -> list[int]:
    """Return a mask of the tokens that have characters in these ranges: the second half of `apply_chat_template`. If
    the first or the last character of a range is in no token, such as a space that the tokenizer drops or trims from
    the offsets, Transformers (5.17) would end the mask there, or mark all that follows."""
    offsets = np.array(tokens.offsets, np.int64).reshape(-1, 2)
    starts, ends = offsets[:, 0], offsets[:, 1]
    mask = np.zeros(len(tokens), np.int8)
    for begin, end in ranges:
        # the trimmed offsets of a token of spaces are both its end
        inside = np.flatnonzero((ends > begin) & np.where(starts < ends, starts < end, starts <= end))
        if begin < end and len(inside):
            mask[inside[0] : inside[-1] + 1] = 1
    return [*map(int, mask)]


def _rendered(
    tokenizer: Any, messages: list[Row], template: str, options: Mapping[str, Any] | None = None
) -> str | None:
    """Render a conversation; None if the template rejects it."""
    prompt = messages[-1]["role"] == "user"
    try:
        return _render(tokenizer, template, messages, {"add_generation_prompt": prompt, **(options or {})})
    except Exception:  # a template is a program: any exception can occur
        return None


def _render(tokenizer: Any, template: str, messages: Sequence[Row], options: Mapping[str, Any]) -> str:
    return str(tokenizer.apply_chat_template([*messages], chat_template=template, tokenize=False, **options))


def chatml(tokenizer: Any) -> list[str]:
    """Return ChatML in its variants: after BOS if the tokenizer puts BOS before a text, and without BOS, as in many
    models. If the vocabulary has no <|im_end|>, the end-of-text token ends a turn."""
    plain = CHATML.read_text()
    if IM_END not in tokenizer.get_vocab():
        plain = plain.replace(IM_END, str(tokenizer.eos_token))
    begin = tokenizer.decode(beginning(tokenizer.backend_tokenizer))
    return [f"{{{{- {json.dumps(begin, ensure_ascii=False)} }}}}\n{plain}", plain] if begin else [plain]
