"""Base class of the rewards that run programs, always in a sandbox of the kernel (infra/sandbox)."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, ClassVar

from pydantic import Field

from baton.infra.sandbox.pool import Pool
from baton.infra.sandbox.program import Limits, NoSandbox, Program, Result
from baton.infra.sandbox.sandbox import Sandbox
from baton.tasks.core.spec import identity_if_set, not_identity
from baton.tasks.rewards.builtin.builtin import Builtin, final
from baton.tasks.rewards.call import text_of
from baton.tasks.user_code.load_function import Unusable

_FENCE = re.compile(r"^```[^\n`]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Sandboxed(Builtin):
    """Limits for one program with all its children, which are much lower than those of a machine."""

    runs_code: ClassVar[bool] = True

    workers: int = not_identity(2, "programs that run at the same time; each takes a core", ge=1, le=1024)
    wall_s: float = Field(5.0, gt=0, le=3600, description="time limit of a program; seconds")
    cpu_s: int = Field(5, ge=1, le=3600, description="limit of processor time of each of its processes; seconds")
    memory_mb: int = Field(512, ge=64, le=1_000_000, description="memory limit of all its processes together; MiB")
    processes: int = Field(
        1,
        ge=1,
        le=1000,
        description="processes and threads, including itself; without a cgroup each gets an equal share of the memory",
    )
    disk_mb: int = Field(16, ge=1, le=100_000, description="limit of the files that it writes; MiB")
    files: int = Field(1000, ge=1, le=1_000_000, description="limit of the number of files that it writes")
    output_kb: int = Field(64, ge=1, le=100_000, description="limit of its output, and of its errors; KiB")
    read: list[str] = identity_if_set(
        [],
        "folders of the machine that programs may read, and import Python modules from; changes in them are not "
        "noticed, so use another folder, or another `name` of the reward, to score again",
    )

    def prepare(self) -> None:
        try:
            self._pool  # noqa: B018 - starts it
        except NoSandbox as error:
            raise Unusable(str(error)) from error

    def extra_s(self, completions: int, columns: Mapping[str, Sequence[Any]]) -> float:
        return math.ceil(self._programs(completions, columns) / self.workers) * self.wall_s

    def _programs(self, completions: int, columns: Mapping[str, Sequence[Any]]) -> int:
        """Return the maximum number of programs that the reward runs."""
        return completions

    @cached_property
    def _pool(self) -> Pool:
        limits = {field.name: getattr(self, field.name) for field in fields(Limits)}
        return Pool(Sandbox(Limits(**limits), self.read), self.workers)

    def close(self) -> None:
        """Stop the sandboxes that wait for a program."""
        self._pool.close()
        del self._pool

    def _run(self, programs: Sequence[Program], log_metric: Callable[[str, float], None]) -> list[Result]:
        """Return each program's result. The share of programs that met a limit is logged as a metric."""
        self.prepare()
        results = self._pool.map(programs)
        log_metric("met_a_limit", sum(result.limit is not None for result in results) / max(1, len(results)))
        return results


class Code(Sandboxed):
    """A reward that runs the program in a completion."""

    reads_answers: ClassVar[bool] = True

    with_prompt: bool = Field(
        False, description="whether the program begins with the prompt, as in HumanEval, or is the completion alone"
    )
    until: list[str] = Field([], description="texts that end a program; a completion is cut at the first of them")

    def code(self, prompt: Any, completion: Any) -> str:
        """Return the program: the last fenced block after the completion's thinking, or all text after it if there is
        none."""
        text = final(completion)
        if blocks := _FENCE.findall(text):
            text = blocks[-1]
        text = text[: min((at for end in self.until if (at := text.find(end)) >= 0), default=len(text))]
        return text_of(prompt) + text if self.with_prompt else text
