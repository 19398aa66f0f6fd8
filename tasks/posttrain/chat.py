"""Choose the chat template to tune a model with, and the token that ends a turn.

    chat = chat_of(tokenizer)     sets the tokenizer's template to one with generation marks, if one is known
    chat.marked                   the template marks the assistant's turns: `loss: assistant` is possible
    chat.end                      id of the token that ends a turn, and generation
    chat.write(directory)         the files a model tuned on chat needs beside its weights

A tokenizer without a template gets ChatML (chatml.jinja), as does one with a ChatML template without marks or tools:
conversations render as before. If TRL has a marked version of a model family's template, which renders the same text,
that one is used for tuning, and the model keeps its own. No torch here, since preflight imports this too.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from infra.durable import write_json
from tasks.posttrain.trl_hooks.templates import trl_templates
from tasks.rows.stored import Row

TEMPLATE_FILE, GENERATION_FILE = "chat_template.jinja", "generation_config.json"
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
    marked: bool
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
            (directory / TEMPLATE_FILE).write_text(self.template)
        path = directory / GENERATION_FILE
        config = json.loads(path.read_text()) if path.exists() else {}
        before = config.get("eos_token_id", _eos_of_model(directory))
        ends = with_end(before, self.end)
        if ends not in (before, [before]):
            write_json(path, config | {"eos_token_id": ends})


def chat_of(tokenizer: Any) -> Chat:
    """Set a tokenizer's chat template to the one to tune with."""
    if isinstance(tokenizer.chat_template, dict):  # several, by name
        tokenizer.chat_template = tokenizer.chat_template["default"]
    original, chatml = tokenizer.chat_template, _chatml(tokenizer)
    tokenizer.chat_template = chatml if original is None else training_template(tokenizer) or original
    end = end_of_turn(tokenizer)
    template = tokenizer.chat_template
    given = template == chatml
    return Chat(template, given, has_generation(template), tokenizer.eos_token_id if end is None else end)


def with_end(ends: int | list[int] | None, end: int) -> list[int]:
    """The tokens that end generation, including `end`."""
    known = [ends] if isinstance(ends, int) else list(ends or [])
    return known if end in known else [*known, end]


def has_generation(template: str) -> bool:
    """Whether it marks the assistant's turns with {% generation %}."""
    return re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None


def training_template(tokenizer: Any) -> str | None:
    """The tokenizer's template with generation marks; None if no such template is known. Candidates are TRL's marked
    templates: of the same template, or one that renders some conversations identically."""
    template = tokenizer.chat_template
    if template is None or has_generation(template):
        return template  # type: ignore[no-any-return]
    for plain, marked in trl_templates().values():
        if template == plain:
            return marked
    candidates = [(marked, _PROBES) for _, marked in trl_templates().values()]
    if "tool" not in template:  # ChatML that ignores tools
        candidates.insert(0, (_chatml(tokenizer), _PROBES[:-1]))
    for marked, probes in candidates:
        rendered = [_rendered(tokenizer, probe, template) for probe in probes]
        if rendered[1] and rendered == [_rendered(tokenizer, probe, marked) for probe in probes]:
            return marked
    return None


def end_of_turn(tokenizer: Any) -> int | None:
    """Id of the token that ends an assistant turn, where a served model stops. None if the template ends it with
    ordinary text or nothing."""
    text = _rendered(tokenizer, [_QUESTION, {"role": "assistant", "content": "It is this."}], tokenizer.chat_template)
    ids = tokenizer((text or "").rpartition("It is this.")[2].lstrip(), add_special_tokens=False)["input_ids"]
    return int(ids[0]) if ids and ids[0] in tokenizer.get_added_vocab().values() else None


def _rendered(tokenizer: Any, messages: list[Row], template: str) -> str | None:
    """Render a conversation; None if the template rejects it."""
    prompt = messages[-1]["role"] == "user"
    try:
        return str(
            tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=prompt
            )
        )
    except (TemplateError, TypeError, ValueError):
        return None


def _chatml(tokenizer: Any) -> str:
    """ChatML; if the vocabulary has no <|im_end|>, the end-of-text token ends a turn."""
    template = CHATML.read_text()
    return template if IM_END in tokenizer.get_vocab() else template.replace(IM_END, str(tokenizer.eos_token))


def _eos_of_model(directory: Path) -> Any:
    return json.loads((directory / "config.json").read_text()).get("eos_token_id")
