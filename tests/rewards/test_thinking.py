"""One rule removes thoughts before completions are scored."""

from typing import Any

import pytest

from baton.tasks.rewards.scorer import Scorer
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.rewards.thinking import THINKING, Thinking, ThinkingCounts, in_words, without_thoughts


@pytest.mark.parametrize(("begin", "end"), THINKING.items())
def test_what_follows_the_last_end_of_a_thought_is_the_answer(begin: str, end: str) -> None:
    thinking = Thinking.of(None)
    assert thinking.answer(f"{begin}It is 7.\n\nno{end}42") == "42"
    assert thinking.answer(f"a template has begun it{end}42") == "42"
    assert thinking.answer("42") == "42"
    assert thinking.answer(f"{begin}It is 42.") == ""


def test_markers_of_other_models_are_text() -> None:
    thinking = Thinking.of(None)
    assert thinking.answer("<think>a</think>Write <thinking> and </thinking>.") == "Write <thinking> and </thinking>."
    quoted = "<think>I could write [THINK].</think>42"
    assert (thinking.answer(quoted), thinking.is_open(quoted), thinking.ends(quoted)) == ("42", False, ["</think>"])


@pytest.mark.parametrize("text", ["42 <think>no", "<think>a</think>42<think>no", "<think>a<think>b</think>c<think>d"])
def test_a_last_thought_without_an_end_leaves_no_answer(text: str) -> None:
    thinking = Thinking.of(None)
    assert (thinking.answer(text), thinking.is_open(text)) == ("", True)


def test_a_prompt_may_have_begun_the_thought() -> None:
    thinking = Thinking.of(None)
    assert thinking.opened("<|im_start|>assistant\n<think>\n") == "<think>"
    assert thinking.opened("<|im_start|>assistant\n<think>\n\n</think>\n\n") == ""
    assert thinking.opened("Put it into <think> and </think>.<|im_start|>assistant\n") == ""


def test_a_recipe_names_another_end() -> None:
    thinking = Thinking.of("Answer:")
    assert thinking.answer("It is 7, no.\nAnswer: 42") == " 42"
    assert thinking.answer("<think>a</think>42") == "<think>a</think>42"
    assert without_thoughts(thinking, "It is 7.\nAnswer:\n\n42") == "42"
    assert without_thoughts(thinking, [{"role": "assistant", "content": "7 Answer:42"}]) == [
        {"role": "assistant", "content": "42"}
    ]


def test_a_template_that_has_the_end_of_a_thought_is_of_a_model_that_thinks() -> None:
    assert Thinking.of(None, "{{ m.content.split('</think>')[-1] }}").expected
    assert not Thinking.of(None, "{{ m.content }}").expected


def test_the_counts_say_what_was_left_out_and_what_has_no_end() -> None:
    counts = ThinkingCounts(rewards=["match"])
    for text in ("<think>a</think>42", "<think>a", "42"):
        counts.note(Thinking.of(None), text)
    assert in_words(counts.as_json()) == (
        "thoughts up to </think> were left out of 1 of 3 completions; 1 had no end of their thought, and so no answer"
    )
    assert ThinkingCounts(completions=3, without=3).as_json() == {}
    assert in_words(ThinkingCounts("</thnk>", completions=3, without=3).as_json()) == (
        "thoughts up to </thnk> were left out of 0 of 3 completions; 3 had no such end, and were scored whole"
    )
    counts.others.append("mine")
    assert in_words(counts.as_json()).endswith("; mine scored them too, which `think_end` changes")


@pytest.mark.parametrize("as_messages", [True, False])
@pytest.mark.parametrize(
    ("reward", "value"),
    [("match", 0.0), ({"regex": {"pattern": "42"}}, 1.0), ({"length": {"at_most": 3}}, 1.0)],
    ids=str,
)
def test_a_thought_that_the_prompt_has_begun_and_that_has_no_end_is_no_answer(
    reward: Any, value: float, as_messages: bool
) -> None:
    """The thought was cut off. Rewards for a completion's form receive it, as in TRL."""
    completion: Any = [{"role": "assistant", "content": "42"}] if as_messages else "42"
    spec = RewardSpec.model_validate(reward)
    with Scorer([spec]) as scorer:
        scores = scorer.score(["a"] * 2, [completion] * 2, {"answer": ["42"] * 2}, begun=["<think>", ""])
    assert scores.rewards[spec.label] == [value, 1.0]
