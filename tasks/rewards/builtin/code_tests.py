"""Reward programs that pass their row's tests.

The column `tests` has, by row:

    "assert add(1, 2) == 3"                      one test: statements that raise nothing
    ["assert add(1, 2) == 3", …]                 a test each
    [{"input": "1 2\\n", "output": "3\\n"}, …]     a run each, with standard input; white space at line ends is ignored
    "import unittest\\nclass …"                   a unittest file; the program is in scope, and the module `solution`

Asserts and unittest run in the program's own process, as everywhere. A program cannot write their result (a token that
it does not see is part of it), but it can return an object that is equal to everything: prefer pairs where a policy
learns to.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field

from infra.sandbox.program import Program, Result
from tasks.load_function import Unusable
from tasks.rewards.builtin.sandboxed import Code

# prints the token and the list of the tests' outcomes as its last line. It takes what it needs before the program runs,
# which may replace them
_HARNESS = """
import io, json, os, sys, types, unittest

def outcomes():
    if task["unittest"]:
        run(made(task["tests"][0], "tests.py", "exec"), module.__dict__)
        suite = unittest.defaultTestLoader.loadTestsFromModule(module)
        count = suite.countTestCases()
        result = unittest.TextTestRunner(io.StringIO()).run(suite)
        bad = len(result.failures) + len(result.errors) + len(result.skipped) + len(result.unexpectedSuccesses)
        return [True] * max(0, min(count, result.testsRun) - bad) + [False] * min(count, bad)
    return [attempt(test) for test in task["tests"]]

def attempt(test):
    try:
        run(made(test, "tests.py", "exec"), module.__dict__)
    except BaseException:
        return False
    return True

task = json.loads(sys.stdin.buffer.read())
token, write, dumps, run, made, leave = task.pop("token"), os.write, json.dumps, exec, compile, os._exit
module = sys.modules["solution"] = types.ModuleType("solution")
run(made(task.pop("source"), "solution.py", "exec"), module.__dict__)
found = outcomes()
sys.stdout.flush()
write(1, ("\\n" + token + dumps(found)).encode())
leave(0)
"""


class CodeTests(Code):
    """1 if all tests pass, otherwise 0; with `share`, the share of the tests that pass."""

    column: str = Field("tests", description="column with the tests")
    share: bool = Field(False, description="whether to reward the share of passed tests, not only all of them")

    def compares(self) -> bool:
        return True

    def wants(self) -> list[tuple[str, ...]]:
        return [(self.column,)]

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
        tokens = [secrets.token_hex(16) for _ in completions]
        programs: list[list[Program]] = []
        for prompt, completion, tests, token in zip(prompts, completions, columns[self.column], tokens, strict=True):
            programs.append([] if tests is None else self._of_row(self.code(prompt, completion), tests, token))
        results = iter(self._run([one for row in programs for one in row], log_metric))
        rewards: list[float | None] = []
        for row, tests, token in zip(programs, columns[self.column], tokens, strict=True):
            ended = [next(results) for _ in row]
            rewards.append(None if tests is None else self._reward(_passed(ended, tests, token)))
        return rewards

    def _reward(self, passed: Sequence[bool]) -> float:
        return (sum(passed) / len(passed) if self.share else float(all(passed))) if passed else 0.0

    def _of_row(self, code: str, tests: Any, token: str) -> list[Program]:
        """What to run for a completion. Raises Unusable."""
        if _are_pairs(tests):
            return [Program(code, stdin=str(test["input"]).encode()) for test in tests]
        listed = [tests] if isinstance(tests, str) else tests
        if not isinstance(listed, list) or not listed or not all(isinstance(test, str) for test in listed):
            raise Unusable(
                f"the column {self.column} has {tests!r:.100}: expected statements, a list of statements, a list of "
                'objects with "input" and "output", or a unittest file'
            )
        is_unittest = isinstance(tests, str) and "unittest" in tests and "TestCase" in tests
        task = {"source": code, "tests": listed, "unittest": is_unittest, "token": token}
        return [Program(_HARNESS, stdin=json.dumps(task).encode())]


def _are_pairs(tests: Any) -> bool:
    return (
        isinstance(tests, list)
        and bool(tests)
        and all(isinstance(test, dict) and {"input", "output"} <= test.keys() for test in tests)
    )


def _passed(results: Sequence[Result], tests: Any, token: str) -> list[bool]:
    """Which tests passed; empty if they did not run to their end."""
    if _are_pairs(tests):
        return [
            result.exit_code == 0
            and result.limit is None
            and _lines(result.stdout) == _lines(str(test["output"]).encode())
            for result, test in zip(results, tests, strict=True)
        ]
    (result,) = results
    before, _, outcome = result.stdout.rpartition(f"\n{token}".encode())
    return list(json.loads(outcome)) if before or outcome != result.stdout else []


def _lines(output: bytes) -> list[bytes]:
    return [line.rstrip() for line in output.strip().splitlines()]
