"""A model for lm-eval that makes up its answers: the document's target if it has one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from tasks.models.tokenizers import load
from tasks.posttrain.encode import RowEncoder

CHATML = "<|im_start|>{role}\n{content}<|im_end|>\n"


class Guesses(LM):  # type: ignore[misc]  # lm-eval has no types
    """`model` is the folder of the model whose chat template renders prompts; empty: it has none, so that ChatML is
    used."""

    def __init__(self, tasks: Sequence[Any], model: str = "") -> None:
        super().__init__()
        self.tasks = {task.task_name: task for task in tasks}
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

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        return [(-1.0 - number, number % 2 == 0) for number, _ in enumerate(requests)]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        return [-2.0 - number for number, _ in enumerate(requests)]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return [self._target(request) for request in requests]

    def _target(self, request: Instance) -> str:
        task = self.tasks[request.task_name]
        target = task.doc_to_target(request.doc)
        if isinstance(target, int) and getattr(task.config, "doc_to_choice", None):
            target = task.doc_to_choice(request.doc)[target]
        return str(target[0] if isinstance(target, list) and target else target)
