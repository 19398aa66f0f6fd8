"""The chat template that a conversation is rendered with, and the token that ends a turn.

    chat = chat_of(tokenizer, tools)     of conversations with or without tools
    chat.template                        the model's own, or Baton's
    chat.marked                          one that renders the same and marks the assistant's turns, if any is known:
                                         `loss: assistant` is possible
    chat.end                             id of the token that ends a turn, and generation
    chat.write(directory)                the files a model tuned on chat needs beside its weights

A tokenizer without a template gets ChatML (chatml.jinja), as does one whose only template is ChatML without marks or
tools: conversations render as before. Marks are those of TRL's version of a model family's template; the model keeps
its own. No torch here, since preflight imports this too.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding

from infra.storage.durable import write_json
from tasks.models.hf_files import CONFIG, GENERATION
from tasks.models.tokenizer_files import DEFAULT, TEMPLATE, WITH_TOOLS
from tasks.models.tokenizers import beginning, parsed
from tasks.posttrain.trl_hooks.templates import trl_templates
from tasks.rows.stored import Row

IM_END = "<|im_end|>"
CHATML = Path(__file__).with_name("chatml.jinja")

_QUESTION = {"role": "user", "content": " What is it? "}
_ANSWER = {"role": "assistant", "content": " It is this. "}
_CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
_PROBES: list[list[Row]] = [
    [_QUESTION],
    [_QUESTION, _ANSWER],
    [{"role": "system", "content": " Be brief. "}, _QUESTION, _ANSWER, _QUESTION, _ANSWER],
    [_QUESTION, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, {"role": "tool", "content": "?"}, _ANSWER],
]


@dataclass(frozen=True)
class Chat:
    template: str
    given: bool  # Baton's template, which is saved with the model
    marked: str | None
    end: int

    @property
    def shown(self) -> str:
        """The beginning of the template, for messages."""
        text = " ".join(self.template.split())
        return text if len(text) <= 80 else text[:79] + "…"

    def write(self, directory: Path) -> None:
        """Write the template, if it is Baton's, to a Hugging Face directory, and add the end of a turn to its
        generation config's eos_token_id."""
        if self.given:
            (directory / TEMPLATE).write_text(self.template)
        path = directory / GENERATION
        config = json.loads(path.read_text()) if path.exists() else {}
        of_model = json.loads((directory / CONFIG).read_text()).get("eos_token_id")
        before = config.get("eos_token_id", of_model)
        ends = with_end(before, self.end)
        if ends not in (before, [before]):
            write_json(path, config | {"eos_token_id": ends})


def chat_of(tokenizer: Any, tools: bool = False) -> Chat:
    """The chat of conversations, `tools`: of those with tools. Sets the tokenizer's template if it is given one."""
    original = tokenizer.chat_template
    if isinstance(original, dict):  # several: Transformers' rule, see tasks/models/tokenizer_files.py
        template = original[WITH_TOOLS if tools and WITH_TOOLS in original else DEFAULT]
        marked, given = training_template(tokenizer, template), False
    else:
        marked = training_template(tokenizer, original) if original else chatml(tokenizer)[0]
        given = marked in chatml(tokenizer)
        template = tokenizer.chat_template = marked if given else original
    end = end_of_turn(tokenizer, template)
    return Chat(template, given, marked, tokenizer.eos_token_id if end is None else end)


def with_end(ends: int | list[int] | None, end: int) -> list[int]:
    """The tokens that end generation, including `end`."""
    known = [ends] if isinstance(ends, int) else list(ends or [])
    return known if end in known else [*known, end]


def has_generation(template: str) -> bool:
    """Whether it marks the assistant's turns with {% generation %}."""
    return re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None


def training_template(tokenizer: Any, template: str) -> str | None:
    """A template with generation marks; None if no such template is known. Candidates are TRL's marked templates: of
    the same template, or one that renders some conversations identically."""
    if has_generation(template):
        return template
    for plain, marked in trl_templates().values():
        if template == plain:
            return marked
    candidates = [(marked, _PROBES) for _, marked in trl_templates().values()]
    if "tool" not in template:  # ChatML that ignores tools
        candidates = [(marked, _PROBES[:-1]) for marked in chatml(tokenizer)] + candidates
    for marked, probes in candidates:
        rendered = [_rendered(tokenizer, probe, template) for probe in probes]
        if rendered[1] and rendered == [_rendered(tokenizer, probe, marked) for probe in probes]:
            return marked
    return None


def end_of_turn(tokenizer: Any, template: str) -> int | None:
    """Id of the token that ends an assistant turn, where a served model stops. None if the template ends it with
    ordinary text or nothing."""
    text = _rendered(tokenizer, [_QUESTION, {"role": "assistant", "content": "It is this."}], template)
    ids = parsed(tokenizer, (text or "").rpartition("It is this.")[2].lstrip())
    return ids[0] if ids and ids[0] in tokenizer.get_added_vocab().values() else None


def rendered_with_marks(
    tokenizer: Any, template: str, conversation: list[Row], /, **options: Any
) -> tuple[str, list[tuple[int, int]]]:
    """A conversation's text, and the ranges of its characters that the template marks. It is the first half of
    Transformers' `apply_chat_template(…, return_assistant_tokens_mask=True)` (5.17), which also tokenizes."""
    from transformers.utils.chat_template_utils import render_jinja_template  # takes seconds

    options = {**tokenizer.special_tokens_map, **options}
    (text,), (ranges,) = render_jinja_template(
        [conversation], chat_template=template, return_assistant_tokens_mask=True, **options
    )
    return text, ranges


def marked_tokens(tokens: Encoding, ranges: list[tuple[int, int]]) -> list[int]:
    """The second half: a mask of the tokens that have characters in these ranges. Where the first or the last character
    of a range is in no token, as a space is if the tokenizer trims offsets or drops it, Transformers (5.17) ends the
    mask, or marks all that follows."""
    offsets = np.array(tokens.offsets, np.int64).reshape(-1, 2)
    starts, ends = offsets[:, 0], offsets[:, 1]
    mask = np.zeros(len(tokens), np.int8)
    for begin, end in ranges:
        # of a token of spaces alone, trimmed offsets have the end
        inside = np.flatnonzero((ends > begin) & np.where(starts < ends, starts < end, starts <= end))
        if begin < end and len(inside):
            mask[inside[0] : inside[-1] + 1] = 1
    return [*map(int, mask)]


def _rendered(tokenizer: Any, messages: list[Row], template: str) -> str | None:
    """Render a conversation; None if the template rejects it."""
    prompt = messages[-1]["role"] == "user"
    try:
        return str(
            tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=prompt
            )
        )
    except Exception:  # a template is a program: any exception can occur
        return None


def chatml(tokenizer: Any) -> list[str]:
    """ChatML, after BOS if the tokenizer puts that before a text, and as many models have it, without. If the
    vocabulary has no <|im_end|>, the end-of-text token ends a turn."""
    plain = CHATML.read_text()
    if IM_END not in tokenizer.get_vocab():
        plain = plain.replace(IM_END, str(tokenizer.eos_token))
    begin = tokenizer.decode(beginning(tokenizer.backend_tokenizer))
    return [f"{{{{- {json.dumps(begin, ensure_ascii=False)} }}}}\n{plain}", plain] if begin else [plain]
