"""Rewards that run programs in a sandbox."""

import json
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from baton.infra.sandbox.program import Limits, Program, Result
from baton.infra.sandbox.sandbox import Sandbox, unusable
from baton.tasks.core.job import StageError
from baton.tasks.rewards.builtin.code_tests import CodeTests, verdict
from baton.tasks.rewards.builtin.sandboxed import Sandboxed
from baton.tasks.rewards.call import Batch, Log, Reward
from baton.tasks.rewards.gold import check_gold
from baton.tasks.rewards.scorer import Scorer
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.user_code.load_function import Unusable
from tests.infra.sandbox.conftest import python_command
from tests.rewards.builtin import attacks
from tests.rewards.builtin.attacks import ATTACKS, FUNCTIONS, GROUPS, PAIRS, TESTS, UNITTEST, programs

if problem := unusable("bubblewrap"):
    pytest.skip(f"bubblewrap: {problem}", allow_module_level=True)

RIGHT = programs("programs.txt")
STAND_INS = programs("stand_ins.txt")
ADD, WRONG = "def add(a, b): return a + b", "def add(a, b): return a - b"
TEST = "assert add(1, 2) == 3"
CASES = """
import unittest
from solution import add
class Adding(unittest.TestCase):
    def test_two(self): self.assertEqual(add(1, 2), 3)
    def test_nothing(self): self.assertEqual(add(1, 0), 1)
    def test_wrong(self): self.assertEqual(add(1, 1), 3)
"""


def scored(reward: Any, completions: list[Any], prompts: list[Any] | None = None, **row: Any) -> tuple[Any, Log]:
    """Score completions for one row in this process, with limits for a busy machine."""
    kind, options = (reward, {}) if isinstance(reward, str) else next(iter(reward.items()))
    spec = RewardSpec.model_validate({kind: {"wall_s": 60.0, "cpu_s": 60} | options}).pinned()
    assert isinstance(spec.builtin, Sandboxed)
    columns = {name: [value] * len(completions) for name, value in row.items()}
    log = Log()
    batch = Batch(prompts or ["p"] * len(completions), completions, columns)
    with closing(spec.builtin):
        return Reward(kind, spec.builtin, Path()).score(batch, log, print), log


def worth(reward: Any, completions: list[Any], **row: Any) -> list[float | None]:
    values, _ = scored(reward, completions, **row)
    return list(values)


def worth_of_rows(rows: Sequence[tuple[str, Any]], **options: Any) -> list[float | None]:
    """Return the rewards of programs, each with its tests."""
    with closing(CodeTests(**{"wall_s": 60.0, "cpu_s": 60} | options)) as reward:
        return reward(
            prompts=[""] * len(rows),
            completions=[program for program, _ in rows],
            tests=[tests for _, tests in rows],
            log_metric=lambda *_: None,
        )


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
    shares = worth({"code_tests": {"share": True}}, [ADD, WRONG, "raise ValueError"], tests=CASES)
    assert shares == pytest.approx([2 / 3, 1 / 3, 0])


def test_pytest_s_functions_are_a_test_each() -> None:
    tests = "from solution import add\ndef test_a(): assert add(1, 2) == 3\ndef test_b(): assert add(1, 1) == 3\n"
    assert worth({"code_tests": {"share": True}}, [ADD, "1 / 0"], tests=tests) == [0.5, 0]


@pytest.mark.long
def test_tests_use_a_program_as_if_it_were_in_their_process() -> None:
    rows = {name: (program, tests if len(tests) > 1 else tests[0]) for name, (program, *tests) in RIGHT.items()}

    rewards = dict(zip(rows, worth_of_rows([*rows.values()]), strict=True))

    assert {name for name, reward in rewards.items() if reward != 1} == set()


def test_no_program_decides_whether_it_passes() -> None:
    """Each of these programs would pass if it shared a process with the tests."""
    cheats = programs("cheats.txt")

    rewards = dict(zip(cheats, worth_of_rows([(program, test) for program, test in cheats.values()]), strict=True))

    assert {name: reward for name, reward in rewards.items() if reward != 0} == {}


@pytest.mark.parametrize("name", STAND_INS)
def test_no_object_of_the_program_stands_in_for_data(name: str) -> None:
    program, *tests = STAND_INS[name]
    assert worth_of_rows([(program, tests)], share=True) == [0]


def test_each_stand_in_would_pass_in_one_process_with_its_tests() -> None:
    given = json.dumps([*STAND_INS.values()])
    alone = (
        "import json, sys, types\n"
        "for program, *tests in json.load(sys.stdin):\n"
        "    for test in tests:\n"
        "        module = sys.modules['solution'] = types.ModuleType('solution')\n"
        "        exec(program, vars(module))\n"
        "        exec(test, dict(vars(module), __name__='tests'))\n"
    )
    result = Sandbox(Limits(wall_s=60.0)).run(Program(alone, stdin=given.encode()))

    assert (result.exit_code, result.limit) == (0, None), result.stderr.decode()


def attacked(tests: Any, *groups: str) -> dict[str, float | None]:
    """Return the attacks that get a reward. Those that never end are stopped early."""
    found: dict[str, float | None] = {}
    for wall_s, chosen in ((10.0, {*groups} - {"endless"}), (2.0, {*groups} & {"endless"})):
        rows = {name: (source, tests) for name, source in ATTACKS.items() if name.partition(":")[0] in chosen}
        rewards = worth_of_rows([*rows.values()], share=True, wall_s=wall_s, cpu_s=5, memory_mb=256)
        found |= dict(zip(rows, rewards, strict=True))
    return {name: reward for name, reward in found.items() if reward != 0}


@pytest.mark.long
def test_no_attack_is_worth_anything() -> None:
    """This runs the attacks that end soon. If one of them raises, so does this test."""
    assert attacked(TESTS, "value", "frames") == {}


@pytest.mark.long
@pytest.mark.parametrize("tests", ["TESTS", "UNITTEST", "FUNCTIONS", "PAIRS"])
def test_no_attack_of_all_is_worth_anything(tests: str) -> None:
    assert attacked(getattr(attacks, tests), *GROUPS) == {}


@pytest.mark.long
def test_no_attack_under_sandlock_is_worth_anything() -> None:
    """Sandlock runs as an ordinary user without a PID namespace, so the attacks can reach only processes of another
    user or of the program itself."""
    sandlock = "import baton.infra.sandbox.sandbox as it; it.KINDS = {'sandlock': it.KINDS['sandlock'], **it.KINDS}"
    attack = "from tests.rewards.builtin.test_code import *; print(attacked(TESTS, *GROUPS), len(ATTACKS))"
    command = python_command("user", "-c", f"{sandlock}; {attack}")

    tried = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)

    assert tried.stdout == f"{{}} {len(ATTACKS)}\n", tried.stderr[-3000:]


def test_the_tests_of_the_attacks_pass_for_a_program_that_adds() -> None:
    adds = "def add(a, b): return a | b if isinstance(a, set) else a + b"
    rows = [(adds, TESTS), (ADD, UNITTEST), (ADD, FUNCTIONS), ("print(sum(map(int, input().split())))", PAIRS)]
    assert worth_of_rows(rows, share=True) == [1, 1, 1, 1]


def test_a_test_that_only_the_program_could_decide_is_named_once(capfd: pytest.CaptureFixture[str]) -> None:
    money = "class Money:\n    def __init__(self, n): self.n = n\n    def __eq__(self, other): return self.n == other"
    assert worth_of_rows([(money, "assert Money(5) == 5"), (money, "assert Money(5) == 5")]) == [0, 0]
    assert capfd.readouterr().err == (
        "code_tests: a test failed: Money() is an object of the program's, not data: a test cannot compare it with "
        "data or calculate data from it (eq), but use its attributes\n"
    )


@pytest.mark.parametrize(
    "written",
    [b"", b"[", b"5", b"null", b"[true]", b'{"outcomes": "2", "why": ""}', b'{"outcomes": "11", "why": ""}',
     b'{"outcomes": [1000], "why": ""}', b'{"outcomes": "1"}', b'{"outcomes": "1", "why": 5}', b"\xff", b"[" * 10_000],
    ids=str,
)  # fmt: skip
def test_what_is_no_verdict_is_worth_nothing(written: bytes) -> None:
    assert verdict(Result(0, written, b"", None, 0.0), 1)[0] == []


def test_a_program_is_the_last_block_of_an_answer() -> None:
    said = f"First:\n```python\n{WRONG}\n```\nNo:\n```python\n{ADD}\n```\nThat is it."
    assert worth("code_tests", [said, [{"role": "assistant", "content": said}]], tests=TEST) == [1, 1]


def test_a_program_in_the_thinking_is_none() -> None:
    assert worth("code_tests", [f"<think>\n```\n{ADD}\n```\n</think>\n```\n{WRONG}\n```"], tests=TEST) == [0]


def test_a_program_continues_its_prompt_up_to_a_stop() -> None:
    reward = {"code_tests": {"with_prompt": True, "until": ["\ndef "]}}
    values, _ = scored(reward, ["    return a + b\ndef broken("], ["def add(a, b):\n"], tests=TEST)
    assert values == [1]


def test_rows_without_tests_have_no_reward_and_wrong_ones_are_named() -> None:
    assert worth("code_tests", [ADD], tests=None) == [None]
    with pytest.raises(Unusable, match=r"column tests has 5: expected statements"):
        worth("code_tests", [ADD], tests=5)


def test_what_met_a_limit_is_a_metric() -> None:
    _, log = scored({"code_tests": {"cpu_s": 1}}, ["while True: pass", ADD], tests=TEST)
    assert log.metrics == {"met_a_limit": [0.5]}


def test_the_rows_own_programs_are_tried_first() -> None:
    rows = [
        {"prompt": "add", "completion": ADD, "tests": "assert add(1, 2) == 3"},
        {"prompt": "multiply", "completion": "def mul(a, b): return a * b", "tests": "assert mul(2, 3) == 6"},
    ]
    (line,) = check_gold([RewardSpec.model_validate("code_tests")], rows)
    assert (line.own, line.others) == (1, 0)
    with pytest.raises(StageError, match="not higher"):
        check_gold([RewardSpec.model_validate("code_tests")], [row | {"tests": "assert False"} for row in rows])


@pytest.mark.long
def test_a_batch_of_programs_that_hang_is_scored_within_its_extra_time() -> None:
    """timeout_s is for the reward itself; the limit of each program is added."""
    spec = RewardSpec.model_validate({"code_tests": {"wall_s": 1.0}, "timeout_s": 2.5})
    with Scorer([spec]) as scorer:
        scores = scorer.score(["p"] * 8, ["while True: pass"] * 8, {"tests": [TEST] * 8})
    assert scores.total == [0] * 8


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
    found = RewardSpec.model_validate({"program": {"file": str(check)}}).pinned()
    check.unlink()
    assert found.problems() == []
    assert worth({"program": found.model_dump(exclude_none=True)["program"]}, ["a"]) == [1]


def test_a_program_that_never_prints_a_number_is_an_error(tmp_path: Path) -> None:
    check = tmp_path / "check.py"
    check.write_text("import json\nrow = json.load(open(0))\nprint(row['nothing'])")
    with pytest.raises(Unusable, match=r"(?s)check\.py printed no number .*KeyError: 'nothing'"):
        worth({"program": {"file": str(check)}}, ["a", "b"])


def test_a_program_that_fails_for_all_completions_of_a_batch_alone_ends_nothing(tmp_path: Path) -> None:
    check = tmp_path / "check.py"
    check.write_text(
        "import json\nrow = json.load(open(0))\nprint(float(row['completion'] == row['answer']) or int('x'))"
    )
    assert worth({"program": {"file": str(check)}}, ["\x1b[2J", "b"], answer="4") == [0, 0]


def test_a_program_that_is_not_there_is_a_problem() -> None:
    (problem,) = RewardSpec.model_validate({"program": {"file": "nowhere.py"}}).problems()
    assert (problem.path, problem.value) == ("program.file", "nowhere.py")
