"""The environments of a batch of conversations, each in a separate process.

    with Environments(spec) as environments:                 # a ToolUse
        environments.schemas                                 # of the tools, for the chat template
        observations = environments.reset(rows, seeds)       # text or None; begins a batch
        answers = environments.call({0: [("buy", {"item": "tea"})]})
        finals = environments.finish()

Processes are forked from one that has imported the user's files (host.py): an environment that leaks, exits or hangs
affects its own conversation alone. A call that raises is answered with the error's text; a conversation whose process
is gone is lost: it gets no more answers, and has no final state. The processes see the environment variables that
rewards see (tasks/rewards/user_process.py), and are not a sandbox against an attacker.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from baton.tasks.core.job import StageError
from baton.tasks.environments.host import LOAD_S, SILENT_S
from baton.tasks.environments.spec import ToolUse
from baton.tasks.rewards.user_process import UserProcess
from baton.tasks.rows.stored import Row
from baton.tasks.user_code.load_function import SOURCES

Call = tuple[str, Any]  # the tool's name and its arguments


@dataclass(frozen=True)
class ToolResult:
    """A tool's answer to the model."""

    text: str
    failed: bool = False


@dataclass(frozen=True)
class Final:
    """The final state of a conversation's environment. `state` has its public attributes that are JSON values, `reward`
    is the result of get_reward()."""

    state: dict[str, Any]
    reward: float | None = None
    lost: str = ""  # why there is no state


class Environments:
    """A context manager for the processes of the environment, or the tools, that a spec names."""

    def __init__(self, spec: ToolUse, waiting: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        """`waiting` is entered while the processes work."""
        if problems := spec.tool_problems():
            raise StageError("\n".join(map(str, problems)))
        self.spec, self.waiting = spec, waiting
        self.schemas: list[dict[str, Any]] = []
        self.owns_reward = False
        self.lost: dict[int, str] = {}  # conversations of this batch
        self._count = 0

    @property
    def name(self) -> str:
        """The name of the environment's class, or `tools`."""
        return self.spec.environment.attribute if self.spec.environment else "tools"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            home = stack.enter_context(TemporaryDirectory(prefix="baton-environments-", ignore_cleanup_errors=True))
            folder = Path(home) / "0"
            what = "environment" if self.spec.environment else "tool"
            self._process = UserProcess(folder, self.spec.tool_variables, "baton.tasks.environments.host", what=what)
            stack.callback(self._process.close)
            functions = {at: function.pinned() for at, function in self.spec.tool_functions().items()}
            for function in functions.values():
                function.write(folder / SOURCES)
            places = {at: function.request() for at, function in functions.items()}
            environment = places.pop("environment", None)
            tools, memory_gb = list(places.values()), self.spec.tool_memory_gb
            request = {"environment": environment, "tools": tools, "memory_gb": memory_gb}
            described = self._process.ask(json.dumps({"open": request}), LOAD_S)
            self._open = stack.pop_all()
        self.schemas, self.owns_reward = described["schemas"], described["owns_reward"]
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def reset(self, rows: Sequence[Row], seeds: Sequence[int]) -> list[str | None]:
        """Begin a conversation for each row, and drop the previous ones. Returns the results of `reset`. `seeds` are
        for Python's global generator, and NumPy's. Raises StageError with the row."""
        self._process.ask('{"drop": true}', SILENT_S)
        self._count, self.lost = len(rows), {}
        pairs = zip(rows, seeds, strict=True)
        answers = self._exchange({number: {"reset": row, "seed": seed} for number, (row, seed) in enumerate(pairs)})
        for number, answer in answers.items():
            if failed := answer.get("error") or (f"{self.name}.reset: {answer['lost']}" if "lost" in answer else None):
                raise StageError(f"environment {failed}, for the row {json.dumps(rows[number], ensure_ascii=False)}")
        return [answers[number]["observation"] for number in range(len(rows))]

    def call(self, calls: Mapping[int, Sequence[Call]]) -> dict[int, list[ToolResult]]:
        """Run each conversation's calls in order, and the conversations in parallel. A lost conversation has no
        answers, and `lost` has the reason."""
        messages = {number: {"calls": list(some)} for number, some in calls.items() if number not in self.lost}
        answers = self._exchange(messages)
        for number, answer in answers.items():
            if "lost" in answer:
                names = ", ".join(name for name, _ in calls[number])
                self.lost[number] = f"{self.name}.{names}: {answer['lost']}"
        return {
            number: [ToolResult(text, failed) for text, failed in answers[number]["results"]]
            for number in messages
            if number not in self.lost
        }

    def finish(self) -> list[Final]:
        """Return the final states of the conversations. Raises StageError if get_reward fails."""
        answers = self._exchange({number: {"end": True} for number in range(self._count) if number not in self.lost})
        self._process.ask('{"drop": true}', SILENT_S)
        if failed := next((answer["error"] for answer in answers.values() if "error" in answer), None):
            raise StageError(f"environment {failed}")
        self.lost |= {
            number: f"{self.name}: {answer['lost']}" for number, answer in answers.items() if "lost" in answer
        }
        return [
            Final({}, lost=self.lost[number])
            if number in self.lost
            else Final(answers[number]["state"], answers[number]["reward"])
            for number in range(self._count)
        ]

    def _exchange(self, messages: Mapping[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        if not messages:
            return {}
        timeout_s = self.spec.tool_timeout_s
        try:
            request = json.dumps({"tell": messages, "timeout_s": timeout_s})
        except (TypeError, ValueError) as error:
            raise StageError(f"environment: columns may contain text, numbers, lists and objects: {error}") from error
        with self.waiting():
            answers = self._process.ask(request, SILENT_S)
        return {int(number): answer for number, answer in answers.items()}
