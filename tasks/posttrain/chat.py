"""The chat template that a model is tuned with, and the token that ends a turn.

    chat = chat_of(tokenizer)     sets the tokenizer's template to one with generation marks, where one is known
    chat.marked                   the assistant's turns can be told apart: `loss: assistant` is possible
    chat.end                      the id of the token that ends a turn; generation ends with it
    chat.write(directory)         what a model that was tuned on chat needs beside its weights

A tokenizer without a template is given ChatML (chatml.jinja), and so is one whose template is a ChatML that knows
neither marks nor tools: conversations read as before. One with a well-known family's template is tuned with the marked
form of that, which renders the same text, and the model keeps its own. No torch here: preflight asks, too.
"""

import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from infra.durable import write_json
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
    given: bool  # by Baton: the template is written with the model
    marked: bool
    end: int

    @property
    def shown(self) -> str:
        """The template's beginning, for messages."""
        words = " ".join(self.template.split())
        return words if len(words) <= 80 else words[:79] + "…"

    def write(self, directory: Path) -> None:
        """Into a Hugging Face directory: the template where the model had none, and the end of a turn as one of the
        tokens that end generation."""
        if self.given:
            (directory / TEMPLATE_FILE).write_text(self.template)
        path = directory / GENERATION_FILE
        config = json.loads(path.read_text()) if path.exists() else {}
        before = config.get("eos_token_id", _eos_of_model(directory))
        ends = with_end(before, self.end)
        if ends not in (before, [before]):
            write_json(path, config | {"eos_token_id": ends})


def chat_of(tokenizer: Any) -> Chat:
    """The chat of a tokenizer, whose template it sets."""
    if isinstance(tokenizer.chat_template, dict):  # several, by name
        tokenizer.chat_template = tokenizer.chat_template["default"]
    own, chatml = tokenizer.chat_template, _chatml(tokenizer)
    tokenizer.chat_template = chatml if own is None else training_template(tokenizer) or own
    end = end_of_turn(tokenizer)
    template = tokenizer.chat_template
    given = template == chatml
    return Chat(template, given, has_generation(template), tokenizer.eos_token_id if end is None else end)


def with_end(ends: int | list[int] | None, end: int) -> list[int]:
    """The tokens that end generation, `end` among them."""
    known = [ends] if isinstance(ends, int) else list(ends or [])
    return known if end in known else [*known, end]


def has_generation(template: str) -> bool:
    """Whether it marks what the assistant says, with {% generation %}."""
    return re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None


def training_template(tokenizer: Any) -> str | None:
    """The tokenizer's template, with marks around what the assistant says; None where no such one is known. One is
    known when TRL has it with marks, or when it says of some conversations what such a one says."""
    own = tokenizer.chat_template
    if own is None or has_generation(own):
        return own  # type: ignore[no-any-return]
    for plain, marked in trl_templates().values():
        if own == plain:
            return marked
    marked_ones = [(marked, _PROBES) for _, marked in trl_templates().values()]
    if "tool" not in own:  # ChatML that passes tools over
        marked_ones.insert(0, (_chatml(tokenizer), _PROBES[:-1]))
    for marked, probes in marked_ones:
        said = [_said(tokenizer, probe, own) for probe in probes]
        if said[1] and said == [_said(tokenizer, probe, marked) for probe in probes]:
            return marked
    return None


@cache
def trl_templates() -> dict[str, tuple[str, str]]:
    """TRL's templates by their names, as models have them and with marks; none where TRL is not installed. They are
    read as files (of TRL 1.16), since TRL's own function imports torch."""
    spec = importlib.util.find_spec("trl")
    folder = Path(next(iter(spec.submodule_search_locations or []), "")) / "chat_templates" if spec else Path("none")
    names = sorted(path.name.removesuffix("_training.jinja") for path in folder.glob("*_training.jinja"))
    return {
        name: ((folder / f"{name}.jinja").read_text(), (folder / f"{name}_training.jinja").read_text())
        for name in names
    }


def end_of_turn(tokenizer: Any) -> int | None:
    """The id of the token that ends a turn of the assistant: a model that is served stops there. None where the
    template ends it with ordinary text, or with nothing."""
    text = _said(tokenizer, [_QUESTION, {"role": "assistant", "content": "It is this."}], tokenizer.chat_template)
    ids = tokenizer((text or "").rpartition("It is this.")[2].lstrip(), add_special_tokens=False)["input_ids"]
    return int(ids[0]) if ids and ids[0] in tokenizer.get_added_vocab().values() else None


def _said(tokenizer: Any, messages: list[Row], template: str) -> str | None:
    """What a template makes of a conversation; None where it refuses it."""
    ask = messages[-1]["role"] == "user"
    try:
        said = tokenizer.apply_chat_template(
            messages, chat_template=template, tokenize=False, add_generation_prompt=ask
        )
    except (TemplateError, TypeError, ValueError):
        return None
    return str(said)


def _chatml(tokenizer: Any) -> str:
    """ChatML; where the vocabulary has no token for the end of a turn, the end-of-text token ends it."""
    template = CHATML.read_text()
    return template if IM_END in tokenizer.get_vocab() else template.replace(IM_END, str(tokenizer.eos_token))


def _eos_of_model(directory: Path) -> Any:
    return json.loads((directory / "config.json").read_text()).get("eos_token_id")
