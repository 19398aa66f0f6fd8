"""Reward Python programs that print their row's answer, as in program-aided reasoning."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field

from baton.infra.sandbox.program import Program
from baton.tasks.rewards.builtin.sandboxed import Code
from baton.tasks.rewards.call import text_of


class PythonOutput(Code):
    """1 if all of the program's output is the answer, ignoring the amount of white space, otherwise 0."""

    column: str = Field("answer", description="column with the right output")

    def __call__(
        self,
        *,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Callable[[str, float], None],
        **columns: Any,
    ) -> list[float | None]:
        programs = [Program(self.code(*each)) for each in zip(prompts, completions, strict=True)]
        results = self._run(programs, log_metric)
        return [
            None
            if answer is None
            else float(
                not result.exit_code
                and result.limit is None
                and result.stdout.split() == text_of(answer).encode().split()
            )
            for result, answer in zip(results, columns[self.column], strict=True)
        ]
