"""Rewards that run programs, in a sandbox."""

from pathlib import Path
from typing import Any

import pytest

from infra.sandbox.sandbox import unusable
from tasks.job import StageError
from tasks.rewards.gold import check_gold
from tasks.rewards.scorer import Scorer, Scores
from tasks.rewards.spec import RewardSpec

if problem := unusable("bubblewrap"):
    pytest.skip(f"bubblewrap: {problem}", allow_module_level=True)

ADD, WRONG = "def add(a, b): return a + b", "def add(a, b): return a - b"
TEST = "assert add(1, 2) == 3"
UNITTEST = """
import unittest
from solution import add
class Adding(unittest.TestCase):
    def test_two(self): self.assertEqual(add(1, 2), 3)
    def test_nothing(self): self.assertEqual(add(1, 0), 1)
    def test_wrong(self): self.assertEqual(add(1, 1), 3)
"""


def scored(reward: Any, completions: list[Any], prompts: list[Any] | None = None, **row: Any) -> Scores:
    """Scores of completions for one row, on a machine that may be busy."""
    kind, options = (reward, {}) if isinstance(reward, str) else next(iter(reward.items()))
    others = {} if isinstance(reward, str) else reward
    patient = {"wall_s": 60.0, "cpu_s": 60} | options
    with Scorer([RewardSpec.model_validate(others | {kind: patient})]) as scorer:
        columns = {name: [value] * len(completions) for name, value in row.items()}
        return scorer.score(prompts or ["p"] * len(completions), completions, columns)


def worth(reward: Any, completions: list[Any], **row: Any) -> list[float | None]:
    (values,) = scored(reward, completions, **row).rewards.values()
    return values


# code_tests


@pytest.mark.parametrize("tests", [TEST, [TEST], [TEST, "assert add(0, 0) == 0"]])
def test_a_program_that_passes_its_tests_is_worth_1(tests: Any) -> None:
    assert worth("code_tests", [ADD, WRONG, "", "def add(", "not a program"], tests=tests) == [1, 0, 0, 0, 0]


def test_a_share_of_the_tests() -> None:
    tests = [TEST, "assert add(5, 0) == 5", "assert add(1, 1) == 3", "raise SystemExit"]
    assert worth({"code_tests": {"share": True}}, [ADD, WRONG], tests=tests) == [0.5, 0.25]


def test_standard_input_and_output() -> None:
    pairs = [{"input": "1 2\n", "output": "3\n"}, {"input": "2 2", "output": "4  \n\n"}]
    programs = ["print(sum(map(int, input().split())))", "print(3)", "print(3); exit(1)", "while True: print(4)"]
    assert worth({"code_tests": {"share": True, "wall_s": 20.0}}, programs, tests=pairs) == [1, 0.5, 0, 0]


def test_a_unittest_file() -> None:
    shares = worth({"code_tests": {"share": True}}, [ADD, WRONG, "raise ValueError"], tests=UNITTEST)
    assert shares == pytest.approx([2 / 3, 1 / 3, 0])


def test_a_program_cannot_report_its_own_result() -> None:
    cheats = [
        "import os; os._exit(0)", "raise SystemExit(0)", "print('[true]'); import os; os._exit(0)",
        "import sys; sys.exit = print", "import builtins; builtins.exec = lambda *_: None",
        "import json; json.dumps = lambda *_: '[true]'", "import os; os.write = print",
        "import unittest; unittest.TestCase.assertEqual = print", "input = lambda: 1",
    ]  # fmt: skip
    assert worth("code_tests", cheats, tests=TEST) == [0] * len(cheats)


def test_a_program_is_the_last_block_of_an_answer() -> None:
    said = f"First:\n```python\n{WRONG}\n```\nNo:\n```python\n{ADD}\n```\nThat is it."
    assert worth("code_tests", [said, [{"role": "assistant", "content": said}]], tests=TEST) == [1, 1]


def test_a_program_continues_its_prompt_up_to_a_stop() -> None:
    reward = {"code_tests": {"with_prompt": True, "until": ["\ndef "]}}
    scores = scored(reward, ["    return a + b\ndef broken("], ["def add(a, b):\n"], tests=TEST)
    assert scores.rewards == {"code_tests": [1]}


def test_rows_without_tests_have_no_reward_and_wrong_ones_are_named() -> None:
    assert worth("code_tests", [ADD], tests=None) == [None]
    with pytest.raises(StageError, match=r"column tests has 5: expected statements"):
        worth("code_tests", [ADD], tests=5)
    with pytest.raises(StageError, match="needs rows with a column tests"):
        worth("code_tests", [ADD])


def test_what_met_a_limit_is_a_metric() -> None:
    scores = scored({"code_tests": {"cpu_s": 1}}, ["while True: pass", ADD], tests=TEST)
    assert scores.metrics == {"met_a_limit": 0.5}


def test_the_rows_own_programs_are_tried_first() -> None:
    rows = [
        {"prompt": "add", "completion": ADD, "tests": "assert add(1, 2) == 3"},
        {"prompt": "multiply", "completion": "def mul(a, b): return a * b", "tests": "assert mul(2, 3) == 6"},
    ]
    (line,) = check_gold([RewardSpec.model_validate("code_tests")], rows)
    assert (line.own, line.others) == (1, 0)
    with pytest.raises(StageError, match="not higher"):
        check_gold([RewardSpec.model_validate("code_tests")], [row | {"tests": "assert False"} for row in rows])


def test_a_batch_of_programs_that_hang_is_scored_within_its_extra_time() -> None:
    """timeout_s is for what the reward does itself: each program's limit is added."""
    reward = {"code_tests": {"wall_s": 1.0}, "timeout_s": 1.0}
    assert worth(reward, ["while True: pass"] * 6, tests=TEST) == [0] * 6


# python_output


def test_what_a_program_prints_is_compared_with_the_answer() -> None:
    programs = ["print(6 * 7)", "print(6, 7)", "42", "print(42); exit(1)", "```\nprint(42)\n```"]
    assert worth("python_output", programs, answer=42) == [1, 0, 0, 0, 1]


# program


def test_a_program_of_the_user_s_scores_a_completion(tmp_path: Path) -> None:
    check = tmp_path / "check.py"
    check.write_text("import json\nrow = json.load(open(0))\nprint('so:')\nprint(len(row['completion']) / row['size'])")
    assert worth({"program": {"file": str(check)}}, ["ab", "abcd"], size=4) == [0.5, 1]


def test_its_source_travels_with_the_spec(tmp_path: Path) -> None:
    check = tmp_path / "check.py"
    check.write_text("print(1)")
    found = RewardSpec.model_validate({"program": {"file": str(check)}}).as_found()
    check.unlink()
    assert found.problems() == []
    assert worth(found.model_dump(exclude_none=True), ["a"]) == [1]


def test_a_program_that_never_prints_a_number_is_an_error(tmp_path: Path) -> None:
    check = tmp_path / "check.py"
    check.write_text("import json\nrow = json.load(open(0))\nprint(row['nothing'])")
    with pytest.raises(StageError, match=r"(?s)check\.py printed no number .*KeyError: 'nothing'"):
        worth({"program": {"file": str(check)}}, ["a", "b"])


def test_a_program_that_is_not_there_is_a_problem() -> None:
    (problem,) = RewardSpec.model_validate({"program": {"file": "nowhere.py"}}).problems()
    assert (problem.path, problem.value) == ("program.file", "nowhere.py")
