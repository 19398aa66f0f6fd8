"""The check of rewards on the rows' own answers before training."""

from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.job import StageError
from baton.tasks.rewards.gold import GoldLine, check_gold, early, late, own_answer
from baton.tasks.rewards.spec import RewardSpec

SUMS = [{"prompt": f"{n} + {n} =", "answer": str(2 * n)} for n in range(10)]

FUNCTIONS = """\
def right(completions, answer, **columns):
    return [float(one == each) for one, each in zip(completions, answer)]

def wrong_column(completions, prompts, answer, **columns):
    return [float(one == each) for one, each in zip(completions, prompts)]

def upside_down(completions, **columns):
    return [float(one != each) for one, each in zip(completions, columns["answer"])]

def short(completions):
    return [-len(one) for one in completions]

def tokens(completion_ids, **columns):
    return [float(len(ids)) for ids in completion_ids]

def never(completions, answer):
    return [None] * len(completions)
"""


@pytest.fixture(autouse=True)
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)


def checked(rows: list[dict[str, Any]], *rewards: Any) -> list[GoldLine]:
    return check_gold([RewardSpec.model_validate(reward) for reward in rewards], rows)


def test_own_answers_score_higher_than_those_of_other_rows() -> None:
    right, similarity = checked(SUMS, "sums.py:right", "similarity")

    assert (right.own, right.others, right.rows) == (1.0, 0.0, 10)
    assert (similarity.own, similarity.others) == (1.0, 0.0)


def test_a_reward_that_does_not_tell_ends_in_a_table_with_an_example() -> None:
    with pytest.raises(StageError) as raised:
        checked(SUMS, "sums.py:right", "sums.py:wrong_column")

    _heading, columns, right, wrong, example, fix = str(raised.value).splitlines()
    assert "own answers" in columns and "of other rows" in columns
    assert right.split() == ["right", "1", "0", "10"]
    assert wrong.split() == ["wrong_column", "0", "0", "10", "not", "higher"]
    assert example == "Reward wrong_column gives 0 to '0' for the prompt '0 + 0 ='."
    assert "`gold: false`" in fix


def test_a_reward_whose_score_is_the_wrong_way_round_is_found_without_a_parameter() -> None:
    with pytest.raises(StageError, match=r"upside_down +0 +1 +10 +lower"):
        checked(SUMS, "sums.py:upside_down")


def test_what_is_not_about_the_answer_is_shown_and_passes() -> None:
    short, never = checked(SUMS, "sums.py:short", {"length": {"at_most": 100}}, "sums.py:never")

    assert short.fault == never.fault == ""
    assert never.own is None


def test_tokens_are_made_for_a_reward_that_counts_them() -> None:
    (line,) = check_gold([RewardSpec.model_validate("sums.py:tokens")], SUMS, encode=lambda text: [1] * len(text))

    assert line.own == 1.5  # five answers have one digit, five have two
    assert [line.reward for line in checked(SUMS, "sums.py:tokens", "sums.py:right")] == ["right"]


def test_a_file_is_imported_once_though_one_of_its_rewards_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(f"open('{tmp_path}/imported', 'a').write('x')\n{FUNCTIONS}")

    assert [line.reward for line in checked(SUMS, "sums.py:tokens", "sums.py:right")] == ["right"]
    assert (tmp_path / "imported").read_text() == "x"


def test_a_reward_can_be_taken_out_or_put_in() -> None:
    assert checked(SUMS, {"function": "sums.py:wrong_column", "gold": False}) == []
    with pytest.raises(StageError, match="not higher"):
        checked(SUMS, {"length": {"at_most": 100}, "gold": True})


@pytest.mark.parametrize(
    "rows", [[], [{"prompt": "a"}], [{"prompt": "a", "answer": "1"}], [{"prompt": p, "answer": "yes"} for p in "abc"]]
)
def test_without_two_answers_nothing_is_compared(rows: list[dict[str, Any]]) -> None:
    assert checked(rows, "sums.py:right") == []


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"prompt": "p", "completion": "c", "answer": "a"}, "c"),
        ({"prompt": "p", "answer": 4, "solution": "s"}, "4"),
        ({"prompt": "p", "ground_truth": {"tests": []}}, None),
        ({"prompt": "p", "answer": " "}, None),
        ({"prompt": "p", "completion": "c", "label": False}, None),  # a completion to avoid
        ({"prompt": "p", "completion": "c", "kto_tag": 0, "answer": "a"}, "a"),
        ({"prompt": [{"role": "user", "content": "p"}], "solution": "s"}, [{"role": "assistant", "content": "s"}]),
    ],
)
def test_a_row_s_own_answer(row: dict[str, Any], answer: Any) -> None:
    assert own_answer(row) == answer


def test_an_early_trial_leaves_what_needs_a_server_a_key_or_tokens_to_the_stage() -> None:
    Path("tokens.py").write_text("def counted(completion_ids, **columns):\n    return [0.0 for _ in completion_ids]\n")
    judge = {"judge": {"model": "judge", "rubric": "Kind."}}
    paid = {"function": "sums.py:short", "environment": ["KEY"]}
    rewards = [RewardSpec.model_validate(one).pinned() for one in ("similarity", judge, paid, "tokens.py:counted")]
    assert [reward.label for reward in rewards if early(reward)] == ["similarity", "counted"]
    assert [reward.label for reward in late(rewards)] == ["judge", "short", "counted"]
