"""The reward that penalizes the same answer to several prompts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.rewards.builtin.diversity import Diversity
from baton.tasks.rewards.scorer import total
from baton.tasks.rewards.spec import RewardSpec


def worth(reward: Diversity, *pairs: tuple[str, str], answers: list[str] | None = None) -> list[float | None]:
    """Return the rewards of (prompt, completion) pairs."""
    columns = {} if answers is None else {"answer": answers}
    return reward(prompts=[prompt for prompt, _ in pairs], completions=[text for _, text in pairs], **columns)


def test_a_unique_answer_gets_the_full_reward() -> None:
    assert worth(Diversity(), ("a", "x is 1"), ("b", "so y")) == [1, 1]


def test_the_same_answer_to_several_prompts_is_worth_the_less_the_more_there_are() -> None:
    assert worth(Diversity(), ("a", "same"), ("b", "same")) == [1 / 2] * 2
    assert worth(Diversity(), *((prompt, "same") for prompt in "abcd")) == [1 / 4] * 4


def test_repeating_an_answer_to_one_prompt_costs_nothing() -> None:
    assert worth(Diversity(), ("a", "same"), ("a", "same")) == [1, 1]


def test_white_space_does_not_make_an_answer_another_one() -> None:
    assert worth(Diversity(), ("a", "f(x,\n  y)"), ("b", "f(x, y)")) == [1 / 2] * 2


def test_the_window_remembers_earlier_steps_and_forgets_older_ones() -> None:
    reward = Diversity(window=2)

    assert worth(reward, ("a", "same")) == [1]
    assert worth(reward, ("b", "same")) == [1 / 2]
    worth(reward, ("c", "one"), ("d", "other"))
    assert worth(reward, ("e", "same")) == [1]


def test_a_shape_that_the_rows_own_answers_do_not_have_so_often_gets_less() -> None:
    pairs = [("a", "self.x = no"), ("b", "self.y = no"), ("c", "self.z = no"), ("d", "call(y)")]
    answers = ["self.name = it", "f(b)", "g(c)", "h"]

    scores = worth(Diversity(shapes=True), *pairs, answers=answers)

    assert scores[:3] == [pytest.approx((1 / 4 + 1 / 4) / (3 / 4))] * 3  # one more than its share may be chance
    assert scores[3] == 1


def test_a_single_answer_has_no_shape_too_many() -> None:
    assert worth(Diversity(shapes=True), ("a", "f(x)"), ("b", "g"), answers=["x = y"] * 2) == [1, 1]


def test_words_that_are_kept_are_part_of_a_shape() -> None:
    pairs = [("a", "return x"), ("b", "return y"), ("c", "del z"), ("d", "del w")]
    reward = Diversity(shapes=True, keep=["return", "del"])

    assert worth(reward, *pairs, answers=["return n", "return m", "f(x)", "g"]) == [1, 1, 1 / 2, 1 / 2]


def test_shapes_count_on_request_only() -> None:
    pairs = [("a", "self.x = no"), ("b", "self.y = no"), ("c", "self.z = no")]

    assert worth(Diversity(), *pairs, answers=["f(x)", "g", "h"]) == [1, 1, 1]
    assert Diversity().wants() == []
    assert Diversity(shapes=True, column="completion").wants() == [("completion",)]


def test_a_resumed_run_scores_like_one_that_was_never_interrupted() -> None:
    whole, before, after = (Diversity(shapes=True) for _ in range(3))
    for reward in (whole, before):
        worth(reward, ("a", "same"), answers=["x = 1"])
    after.load_state_dict(before.state_dict())

    assert worth(after, ("b", "same"), answers=["y"]) == worth(whole, ("b", "same"), answers=["y"])


def test_it_takes_from_what_the_other_rewards_give() -> None:
    specs = [RewardSpec.model_validate("match"), RewardSpec.model_validate({"diversity": {}, "weight": 0.8})]
    rewards: dict[str, list[float | None]] = {"match": [1.0, 0.0, -1.0, None], "diversity": [0.5, 0.5, 0.5, 0.5]}

    assert total(specs, rewards, 4) == pytest.approx([0.6, 0.0, -1.4, None])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.text()), max_size=20), st.booleans())
def test_it_is_between_0_and_1(pairs: list[tuple[str, str]], shapes: bool) -> None:
    scores = worth(Diversity(window=4, shapes=shapes), *pairs, answers=["x = 1"] * len(pairs))

    assert all(score is not None and 0 < score <= 1 for score in scores)
