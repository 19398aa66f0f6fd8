"""The chat template that a model is tuned with, and the token that ends a turn.

    chat = chat_of(tokenizer)     sets the tokenizer's template to one with generation marks, where one is known
    chat.marked                   the assistant's turns can be told apart: `loss: assistant` is possible
    chat.end                      the id of the token that ends a turn; generation ends with it
    chat.write(directory)         what a model that was tuned on chat needs beside its weights

A tokenizer without a template, or with Baton's without `{% generation %}`, is given ChatML. One with a well-known
family's template is tuned with the marked form of that, which renders the same text, and the model keeps its own.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.durable import write_json
from tasks.data.tokenizer import CHAT_TEMPLATE
from tasks.rows.chat import end_of_turn, has_generation, training_template

TEMPLATE_FILE, GENERATION_FILE = "chat_template.jinja", "generation_config.json"
IM_END = "<|im_end|>"


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
    given = tokenizer.chat_template in (None, CHAT_TEMPLATE)
    if given:
        tokenizer.chat_template = _chatml(tokenizer)
    tokenizer.chat_template = training_template(tokenizer) or tokenizer.chat_template
    end = end_of_turn(tokenizer)
    template = tokenizer.chat_template
    return Chat(template, given, has_generation(template), tokenizer.eos_token_id if end is None else end)


def with_end(ends: int | list[int] | None, end: int) -> list[int]:
    """The tokens that end generation, `end` among them."""
    known = [ends] if isinstance(ends, int) else list(ends or [])
    return known if end in known else [*known, end]


def _chatml(tokenizer: Any) -> str:
    """ChatML; where the vocabulary has no token for the end of a turn, the end-of-text token ends it."""
    template = (Path(__file__).with_name("chatml.jinja")).read_text()
    return template if IM_END in tokenizer.get_vocab() else template.replace(IM_END, str(tokenizer.eos_token))


def _eos_of_model(directory: Path) -> Any:
    return json.loads((directory / "config.json").read_text()).get("eos_token_id")
