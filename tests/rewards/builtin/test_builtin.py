"""Built-in rewards, called with TRL's signature."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.rewards.builtin.builtin import Builtin
from baton.tasks.rewards.builtin.format import Format
from baton.tasks.rewards.builtin.json_schema import JsonSchema
from baton.tasks.rewards.builtin.length import Length
from baton.tasks.rewards.builtin.match import Match
from baton.tasks.rewards.builtin.math import Math
from baton.tasks.rewards.builtin.regex import Regex
from baton.tasks.rewards.builtin.similarity import Similarity, longest_common
from baton.tasks.rewards.call import text_of


def worth(reward: Builtin, said: Any, **row: Any) -> float | None:
    """Return the reward of one completion."""
    (value,) = reward(prompts=["p"], completions=[said], **{name: [each] for name, each in row.items()})
    return None if value is None else float(value)


def cpu_s(reward: Builtin, said: str, **row: Any) -> float:
    """Return the least CPU time of three calls, since a call may include an import or a garbage collection."""

    def once() -> float:
        began = time.thread_time()
        worth(reward, said, **row)
        return time.thread_time() - began

    return min(once() for _ in range(3))


# math


@pytest.mark.parametrize(
    ("completion", "answer", "value"),
    [
        ("The answer is 72 clips.", "72", 1),
        (r"so \boxed{\frac{1}{2}}", "0.5", 1),
        ("1,234", "1234", 1),
        ("1/2", r"\frac{1}{2}", 1),
        ("1+x^2", "x^2+1", 1),
        (r"\boxed{(-\infty, 3]}", r"(-\infty, 3]", 1),
        (r"\boxed{[1,2)}", "[1,2]", 0),
        ("48 / 2 = 24, 48 + 24 = 72\n#### 72", "48/2 = <<48/2=24>>24\n#### 72", 1),
        ("The answer is 1e3.", "1000", 1),
        (r"\boxed{1.5e-3}", "0.0015", 1),
        ("50%", "0.5", 1),
        ("12:30", "12:30", 1),
        ("答案是 42。", "42", 1),
        ("The answer is 71.", "72", 0),
        ("forty-two", "42", 0),
        ("I do not know", "72", 0),
        ("", "72", 0),
        (r"\boxed{}", "72", 0),
        ("72", "no number here", None),
        ("72", None, None),
    ],
)
def test_math_compares_values_not_texts(completion: str, answer: str | None, value: float | None) -> None:
    assert worth(Math(), completion, answer=answer) == value


@pytest.mark.parametrize(
    ("completion", "answer", "value"),
    [
        ("The answer is B.", "B", 1), ("The answer is (C).", "C", 1), ("**Answer: B**", "B", 1), ("(B)", "B", 1),
        ("B. Because it is.", "(B)", 1), ("Therefore, option D is correct.", "D", 1), ("So B is right.", "B", 1),
        (r"\boxed{\textbf{(B) }12}", "B", 1), (r"The answer is $\boxed{B}$.", r"\text{B}", 1), ("Answer:\nB", "B", 1),
        ("Is the answer B? No, the answer is C.", "C", 1), ("The answer is $x$.", "x", 1),
        ("The answer is A.", "B", 0), ("A or B", "A", 0), ("The answer is a number.", "A", 0), ("A number.", "A", 0),
        ("The answer is not B.", "B", 0), ("The answer is X.", "x", 0),
        ("yes", "yes", 1), ("Yes, because 3 > 2.", "yes", 1), (r"\boxed{\text{True}}", "true", 1), ("No.", "yes", 0),
        ("the answer is no", "She says\n#### no", 1), ("maybe", "yes", 0), ("yes or no", "yes", 0), ("", "yes", 0),
        (r"\boxed{\text{Evelyn}}", "Evelyn", 1), (r"\boxed{on}", "no", 0),
    ],
)  # fmt: skip
def test_math_compares_answers_in_words(completion: str, answer: str, value: float) -> None:
    assert worth(Math(), completion, answer=answer) == value


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        (r"<think>\boxed{3}</think> The answer is 4.", 1),
        (r"<think>\boxed{4}</think> The answer is 3.", 0),
        (r"it is \boxed{3}, no</think>\boxed{4}", 1),
        (r"<think>\boxed{4}", 0),
        (r"[THINK]\boxed{3}[/THINK]4", 1),
        (r"<|channel|>analysis<|message|>\boxed{3}<|end|><|start|>assistant<|channel|>final<|message|>4", 1),
        (r"<|START_THINKING|>\boxed{3}<|END_THINKING|>4", 1),
    ],
)
def test_an_answer_in_the_thinking_is_none(completion: str, value: float) -> None:
    assert worth(Math(), completion, answer="4") == value


def test_thinking_is_left_out_of_what_is_compared() -> None:
    assert worth(Match(), "<think>5</think>\n4", answer="4") == 1
    assert worth(Similarity(), "<think>the dog</think> the cat", answer="the cat") == 1
    assert worth(JsonSchema.model_validate({"schema": {}}), "<think>{</think> {}") == 1
    assert worth(JsonSchema.model_validate({"schema": {}}), '{"tag": "<think>"}') == 1


def test_math_reads_the_last_box_or_the_end() -> None:
    assert worth(Math(), r"\boxed{3} no, \boxed{4}. " + "So it is. " * 200, answer="4") == 1
    assert worth(Math(), "1 " * 20_000 + "is 4", answer="4") == 1


@pytest.mark.parametrize("said", ["(", "$ ", "1.", "5% ", "the answer is four ", r"\boxed{", r"\frac{1}{"])
def test_math_of_a_policy_that_repeats_itself_takes_no_time(said: str) -> None:
    assert cpu_s(Math(), said * 4000, answer="4") < 1


def test_math_times_out() -> None:
    assert worth(Math(), "$9^{9^{9^{9}}}$", answer="3") == 0


# match, similarity


def test_match_is_to_the_letter_but_for_white_space_at_the_ends() -> None:
    assert worth(Match(), " Yes\n", answer="Yes") == 1
    assert worth(Match(), "yes", answer="Yes") == 0
    assert worth(Match(ignore_case=True), "yes", answer="Yes") == 1
    assert worth(Match(), "a  b", answer="a b") == 0
    assert worth(Match(ignore_space=True), "a  b", answer="a b") == 1
    assert worth(Match(), [{"role": "assistant", "content": "4"}], answer=4) == 1


def test_the_answer_is_in_the_column_that_is_named_or_best_known() -> None:
    assert worth(Match(), "a", solution="a", completion="b") == 1
    assert worth(Match(column="target"), "t", answer="a", target="t") == 1


def test_similarity_is_the_share_that_stands_in_the_same_order() -> None:
    assert worth(Similarity(), "the cat sat", answer="the cat sat") == 1
    assert worth(Similarity(), "the dog sat", answer="the cat sat") == pytest.approx(2 / 3)
    assert worth(Similarity(), "other words", answer="the cat sat") == 0
    assert worth(Similarity(unit="characters"), "cats", answer="cat") == pytest.approx(6 / 7)


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_similarity_is_by_the_longest_common_subsequence(first: str, second: str) -> None:
    lengths = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first, 1):
        for j, b in enumerate(second, 1):
            lengths[i][j] = lengths[i - 1][j - 1] + 1 if a == b else max(lengths[i - 1][j], lengths[i][j - 1])

    assert longest_common(list(first), list(second)) == lengths[-1][-1]


def test_similarity_of_a_policy_that_repeats_itself_takes_no_time() -> None:
    assert cpu_s(Similarity(unit="characters"), "the " * 3000, answer="the cat and the dog " * 200) < 1


# regex, format, length, JSON


def test_regex_is_found_or_finds_the_answer() -> None:
    assert worth(Regex(pattern=r"####"), "so #### 4") == 1
    assert worth(Regex(pattern=r"^####$"), "so #### 4") == 0
    last = Regex(pattern=r"#### (\d+)", column="answer")
    assert worth(last, "#### 3, no: #### 4", answer=4) == 1
    assert worth(last, "4", answer="4") == 0
    assert worth(last, "#### 4", answer=None) is None


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ("<think>a</think><answer>b</answer>", 1),
        ("\n<think>a\nb</think>\n\n<answer>b</answer> ", 1),
        ("<think></think><answer></answer>", 1),
        ("<answer>b</answer><think>a</think>", 0),
        ("<think>a</think>", 0),
        ("x<think>a</think><answer>b</answer>", 0),
        ("<think>a</think> so <answer>b</answer>", 0),
        ("<think><think>a</think><answer>b</answer>", 0),
        ("<think>a</think><answer>b</answer> end", 0),
        ("", 0),
    ],
)
def test_format_is_each_part_once_and_in_order(completion: str, value: float) -> None:
    assert worth(Format(tags=["think", "answer"]), completion) == value


def test_format_may_have_an_open_end() -> None:
    assert worth(Format(tags=["think"], open_end=True), "<think>a</think> the answer") == 1
    assert worth(Format(tags=["think"], open_end=True), "well, <think>a</think> the answer") == 0


def test_length_falls_beyond_its_bounds_over_a_margin() -> None:
    words = Length(at_least=2, at_most=3, margin=1, unit="words")

    assert [worth(words, text) for text in ("", "a", "a b", "a b c", "a b c d", "a b c d e")] == [0, 0.5, 1, 1, 0.5, 0]
    assert worth(Length(at_most=3), "abc") == 1
    assert worth(Length(at_most=3), "abcd") == 0
    assert worth(Length(at_most=3, unit="tokens"), "abcdef", completion_ids=[1, 2]) == 1


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ('{"name": "a", "age": 3}', 1),
        ('{"name": "a"}', 0.5),
        ("[1]", 0.5),
        ('{"name": "a", "age": NaN}', 0),
        ("no JSON", 0),
        ("", 0),
        ("[" * 100_000, 0),
        ("9" * 10_000, 0),
    ],
)
def test_json_is_valid_or_json_or_neither(completion: str, value: float) -> None:
    schema = {"type": "object", "required": ["name", "age"], "properties": {"age": {"type": "integer"}}}

    assert worth(JsonSchema.model_validate({"schema": schema}), completion) == value


@pytest.mark.parametrize(
    ("reward", "completion", "value"),
    [
        (Regex(pattern="(a+)+b"), "a" * 60, 0),
        (JsonSchema.model_validate({"schema": {"pattern": "^(a+)+$"}}), f'"{"a" * 60}!"', 0.5),
        (JsonSchema.model_validate({"schema": {"multipleOf": 0.01}}), "1" + "0" * 400, 0.5),
        (JsonSchema.model_validate({"schema": {"properties": {"a": {"$ref": "http://nowhere"}}}}), '{"a": 1}', 0.5),
    ],
)
def test_no_completion_ends_a_reward(reward: Builtin, completion: str, value: float) -> None:
    assert worth(reward, completion) == value


# All built-in rewards


@given(st.text(), st.text())
def test_any_text_has_a_reward_from_0_to_1(completion: str, answer: str) -> None:
    every = [
        Match(),
        Similarity(),
        Regex(pattern="a+"),
        Format(tags=["t"]),
        Length(at_most=5),
        JsonSchema.model_validate({"schema": {}}),
    ]

    assert all(0 <= (worth(reward, completion, answer=answer) or 0) <= 1 for reward in every)


@given(st.text(st.characters(codec="utf-8")))
def test_the_answer_itself_is_worth_most(answer: str) -> None:
    assert worth(Match(), answer, answer=answer) == worth(Similarity(), answer, answer=answer) == 1


def test_the_text_of_messages_is_their_contents() -> None:
    parts = {"role": "assistant", "content": [{"type": "text", "text": "b"}, {"type": "image"}]}

    assert text_of([{"role": "assistant", "content": "a"}, parts, {"role": "assistant", "content": None}]) == "a\nb\n\n"
