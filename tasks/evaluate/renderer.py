"""A model for lm-eval that renders prompts but does not answer."""

from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from baton.tasks.models.tokenizers import load
from baton.tasks.posttrain.encode import RowEncoder

CHATML = "<|im_start|>{role}\n{content}<|im_end|>\n"


class Renderer(LM):  # type: ignore[misc]  # lm-eval has no types
    """Renders prompts with the chat template of the model in the folder `model`, or with ChatML if `model` is empty."""

    def __init__(self, model: str = "") -> None:
        super().__init__()
        self.encoder = RowEncoder(load(Path(model))) if model else None

    @property
    def tokenizer_name(self) -> str:
        return "none"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return "ChatML" if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if self.encoder is None:
            return "".join(CHATML.format_map(turn) for turn in chat_history)
        return self.encoder.rendered(chat_history, add_generation_prompt)

    def generate_until(self, requests: list[Instance]) -> Any:
        raise NotImplementedError

    loglikelihood = loglikelihood_rolling = generate_until
