"""A model for lm-eval that makes up its answers, or uses the target if the document has one."""

from collections.abc import Sequence
from typing import Any

from lm_eval.api.instance import Instance

from baton.tasks.evaluate.renderer import Renderer


class Guesses(Renderer):
    def __init__(self, tasks: Sequence[Any]) -> None:
        super().__init__()
        self.tasks = {task.task_name: task for task in tasks}

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
