"""Reward programs that pass their row's tests.

The column `tests` has one of these forms in each row:

    "assert add(1, 2) == 3"                      one test: statements that raise nothing
    ["assert add(1, 2) == 3", …]                 one test per item
    [{"input": "1 2\\n", "output": "3\\n"}, …]     one run per item, with standard input; white space at line ends is
                                                 ignored
    "import unittest\\nclass …"                   one test per unittest case or pytest function

The program's process decides nothing: outputs are compared here, and tests run in a separate process, where the
program's functions can be called as if they were local (tasks/rewards/remote).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any, Self

from pydantic import Field

from baton.infra.sandbox.program import Program, Result
from baton.tasks.core.spec import ByBaton
from baton.tasks.rewards.builtin.sandboxed import Code
from baton.tasks.rewards.remote.wire import FIXED, JSON, LIBRARY, MUTABLE
from baton.tasks.user_code.load_function import Unusable

_SHARED = ("wire", "evidence", "objects", "tests_side")  # modules of the tests' process, loaded before the program's
_RULES = 3
_REMOTE = Path(__file__).parents[1] / "remote"


class CodeTests(Code):
    """1 if all tests pass, otherwise 0; with `share`, the share of the tests that pass."""

    column: str = Field("tests", description="column with the tests")
    share: bool = Field(False, description="whether to reward the share of passed tests instead of requiring all")

    rules: ByBaton[int | None] = Field(None, description="version of the rules by which tests pass; filled in by Baton")

    def pinned(self) -> Self:
        """Return a copy with the present rules, so that results of earlier rules are not reused."""
        return super().pinned().model_copy(update={"rules": _RULES})

    def compares(self) -> bool:
        return True

    def _programs(self, completions: int, columns: Mapping[str, Sequence[Any]]) -> int:
        return sum(len(tests) if _are_pairs(tests) else 1 for tests in columns[self.column])

    def __call__(
        self,
        *,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_metric: Callable[[str, float], None],
        **columns: Any,
    ) -> list[float | None]:
        programs: list[list[Program]] = []
        for prompt, completion, tests in zip(prompts, completions, columns[self.column], strict=True):
            programs.append([] if tests is None else self._row_programs(self.code(prompt, completion), tests))
        results = iter(self._run([one for row in programs for one in row], log_metric))
        rewards: list[float | None] = []
        for row, tests in zip(programs, columns[self.column], strict=True):
            ended = [next(results) for _ in row]
            rewards.append(None if tests is None else self._reward(self._passed(ended, tests)))
        return rewards

    def _reward(self, passed: Sequence[bool]) -> float:
        return (sum(passed) / len(passed) if self.share else float(all(passed))) if passed else 0.0

    def _row_programs(self, code: str, tests: Any) -> list[Program]:
        """Return the programs to run for a completion. Raises Unusable."""
        if _are_pairs(tests):
            return [Program(code, stdin=str(test["input"]).encode(errors="surrogatepass")) for test in tests]
        listed = [tests] if isinstance(tests, str) else tests
        if not isinstance(listed, list) or not listed or not all(isinstance(test, str) for test in listed):
            raise Unusable(
                f"the column {self.column} has {tests!r:.100}: expected statements, a list of statements, a list of "
                'objects with "input" and "output", or a unittest file'
            )
        return [
            Program(
                _compiled("program_side"),
                files={"solution.py": code.encode(errors="surrogatepass")},
                stdin=json.dumps({"tests": tests, "types": _data_attributes()}).encode(),
                checker=_compiled("run_tests"),
                modules={f"baton.tasks.rewards.remote.{name}": _compiled(name) for name in _SHARED},
            )
        ]

    def _passed(self, results: Sequence[Result], tests: Any) -> list[bool]:
        """Return for each test whether it passed; empty if the tests did not run to their end."""
        if _are_pairs(tests):
            return [
                result.exit_code == 0
                and result.limit is None
                and _lines(result.stdout) == _lines(str(test["output"]).encode(errors="surrogatepass"))
                for result, test in zip(results, tests, strict=True)
            ]
        outcomes, why = verdict(results[0], len(tests) if isinstance(tests, list) else None)
        if why:
            self._report_once(f"code_tests: a test failed: {why}")
        return outcomes


def _are_pairs(tests: Any) -> bool:
    return (
        isinstance(tests, list)
        and bool(tests)
        and all(isinstance(test, dict) and {"input", "output"} <= test.keys() for test in tests)
    )


def verdict(result: Result, count: int | None) -> tuple[list[bool], str]:
    """Return the outcomes that the tests' process wrote, `count` of them if the number is known, and its reason."""
    if not result.stdout:  # a limit was met, or the tests ended their process
        return [], ""
    try:
        verdict = json.loads(result.stdout)
        outcomes, why = verdict["outcomes"], verdict["why"]
        if type(outcomes) is type(why) is str and {*outcomes} <= {"0", "1"} and count in (None, len(outcomes)):
            return [outcome == "1" for outcome in outcomes], why
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    return [], f"the tests' process wrote {result.stdout[:200]!r}"


@cache
def _compiled(name: str) -> CodeType:
    return compile((_REMOTE / f"{name}.py").read_text(), f"{name}.py", "exec", dont_inherit=True)


@cache
def _data_attributes() -> list[list[str]]:
    """Return the names of the attributes of each type that is sent as data, except those that all objects have."""
    kinds = [*MUTABLE.values(), *FIXED.values(), *JSON, complex, bytes, range, type({}.keys()), type({}.values())]
    kinds += [getattr(import_module(module), name) for name, (module, *_) in LIBRARY.items() if module != "builtins"]
    return [sorted({*dir(kind)} - {*dir(object)}) for kind in kinds]


def _lines(output: bytes) -> list[bytes]:
    return [line.rstrip() for line in output.strip().splitlines()]
