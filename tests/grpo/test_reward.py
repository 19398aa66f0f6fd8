"""What a statement is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.grpo.reward import TOLERANCE, Reward, commonness, excess, quality
from tasks.grpo.shape import shares
from tasks.statements.check import Verdict, check
from tasks.statements.prompt import Prompt

ANYTHING = dict.fromkeys(("_ = _", "return _", "_ ( _ , _ )"), 1.0)  # shapes that are never in excess
PERFECT = Verdict("x = y", parses=True, not_trivial=True, defined=True, uses_context=True)


def passing(statement: str) -> Verdict:
    return Verdict(statement, parses=True, not_trivial=True, defined=True, uses_context=True)


@pytest.mark.parametrize(
    ("completion", "worth"),
    [
        ("return total + step", 1.0),
        ("return total +", 0.0),  # no statement
        ("pass", 0.5),  # parses, nothing undefined; but trivial and takes up nothing
        ("print('hello')", 0.75),  # takes up nothing of the function so far
        ("return total + stpe", 0.75),  # undefined name
        ("stpe()", 0.5),
    ],
)
def test_each_check_is_worth_a_quarter(completion: str, worth: float) -> None:
    prompt = Prompt("id", "module.py", "def add(total, step):\n    ", "return total + step", frozenset())

    assert quality(check(prompt, completion)) == worth


def test_a_statement_of_its_own_keeps_its_whole_reward() -> None:
    reward = Reward(penalty=0.8, window=100, usual=ANYTHING)

    assert reward(["a", "b"], [passing("x = 1"), passing("y = 2")]) == [1.0, 1.0]


def test_the_same_statement_for_several_prompts_loses_the_more_the_more_there_are() -> None:
    reward = Reward(penalty=0.8, window=0, usual=ANYTHING)
    same = passing("return self")

    two = reward(["a", "b"], [same, same])
    four = reward(["a", "b", "c", "d"], [same] * 4)

    assert two == pytest.approx([0.6, 0.6])
    assert four == pytest.approx([0.4] * 4)


def test_repeating_an_answer_to_one_prompt_costs_nothing() -> None:
    reward = Reward(penalty=0.8, window=100, usual=ANYTHING)

    assert reward(["a", "a", "a"], [PERFECT] * 3) == [1.0, 1.0, 1.0]


def test_white_space_does_not_make_a_statement_another_one() -> None:
    reward = Reward(penalty=1.0, window=0, usual=ANYTHING)

    assert reward(["a", "b"], [passing("f(x,\n  y)"), passing("f(x, y)")]) == [0.5, 0.5]


def test_the_window_remembers_earlier_steps_and_forgets_older_ones() -> None:
    reward = Reward(penalty=1.0, window=2, usual=ANYTHING)

    assert reward(["a"], [PERFECT]) == [1.0]
    assert reward(["b"], [PERFECT]) == [0.5]  # "a" was answered so before
    reward(["c", "d"], [passing("p = 1"), passing("q = 2")])
    assert reward(["e"], [PERFECT]) == [1.0]  # both have left the window


def test_a_shape_loses_by_how_much_more_often_it_is_written_than_people_write_it() -> None:
    people = shares(["a.b = c", "d.e = f", *(f"call{'.x' * i}(y)" for i in range(8))])  # a fifth `_ . _ = _`
    reward = Reward(penalty=1.0, window=0, usual=people)

    scores = reward(["p", "q", "r"], [passing("self.x = False"), passing("self.y = False"), passing("call(y)")])

    assert scores[0] == scores[1] == pytest.approx((0.2 + TOLERANCE) / (2 / 3))
    assert scores[2] == pytest.approx((0.1 + TOLERANCE) / (1 / 3))


def test_without_a_penalty_the_checks_alone_count() -> None:
    reward = Reward(penalty=0.0, window=100, usual={})

    assert reward(["a", "b", "c"], [PERFECT] * 3) == [1.0, 1.0, 1.0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "y", "f(z)"]), st.booleans())), st.floats(0, 1))
def test_a_reward_is_between_nothing_and_what_the_checks_give(
    answers: list[tuple[str, str, bool]], penalty: float
) -> None:
    reward = Reward(penalty, window=4, usual={"_": 0.3})
    verdicts = [passing(statement) if passes else Verdict(statement) for _, statement, passes in answers]

    scores = reward([prompt for prompt, *_ in answers], verdicts)

    assert all(0 <= score <= quality(verdict) for score, verdict in zip(scores, verdicts, strict=True))


@given(st.integers(0, 10_000))
def test_commonness_grows_with_the_number_of_others(others: int) -> None:
    assert 0 <= commonness(others) < commonness(others + 1) < 1


@given(st.floats(0.001, 1), st.floats(0, 1))
def test_up_to_its_usual_share_a_shape_is_not_in_excess(share: float, usual: float) -> None:
    assert 0 <= excess(share, usual) < 1
    assert excess(share, share) == 0
