"""Common formats are detected by their columns, and converted to TRL's."""

import copy
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.rows.check import COLUMNS, RowError, problems
from baton.tasks.rows.formats import FORMATS, FormatConverter
from baton.tasks.rows.spec import FormatName

QUESTION, ANSWER = "What is 2 + 2?", "It is 4."
USER = {"role": "user", "content": QUESTION}
ASSISTANT = {"role": "assistant", "content": ANSWER}
WRONG = {"role": "assistant", "content": "It is 5."}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
SYSTEM = {"role": "system", "content": "Be brief."}


def mapped(row: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return the converted row after its validation."""
    converter = FormatConverter(spec.get("columns", {}), spec.get("format"))
    found = converter.mapped(copy.deepcopy(row), "line 1")
    assert converter.format
    assert list(problems(found, converter.format.kind)) == []
    return found


TRL: dict[str, dict[str, Any]] = {
    "a conversation": {"messages": [SYSTEM, USER, ASSISTANT]},
    "a prompt and its answer": {"prompt": QUESTION, "completion": ANSWER, "topic": "sums"},
    "a prompt and its answer, as messages": {"prompt": [USER], "completion": [ASSISTANT]},
    "a preference": {"prompt": QUESTION, "chosen": ANSWER, "rejected": "It is 5."},
    "a preference, as messages": {"prompt": [USER], "chosen": [ASSISTANT], "rejected": [WRONG]},
    "a prompt for rewards": {"prompt": [USER], "answer": 4, "hints": ["two", {"and": "two"}]},
    "a prompt with text for rewards": {"prompt": QUESTION, "text": "the text that it is about"},
    "text": {"text": "Once upon a time"},
    "a tool that gives nothing back": {
        "messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": ""}, ASSISTANT],
    },
    "tools": {
        "messages": [
            USER,
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "name": "add", "content": "4"},
            ASSISTANT,
        ],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}],
    },
}


@pytest.mark.parametrize("name", TRL)
def test_trl_s_rows_stay_as_they_are(name: str) -> None:
    assert mapped(TRL[name]) == TRL[name]


def test_sharegpt_becomes_messages() -> None:
    turns = [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]
    assert mapped({"conversations": turns, "id": "q1"}) == {"messages": [USER, ASSISTANT]}
    assert mapped({"conversations": turns, "system": "Be brief."}) == {"messages": [SYSTEM, USER, ASSISTANT]}


def test_a_sharegpt_preference_becomes_prompt_chosen_and_rejected() -> None:
    row = {
        "conversations": [{"from": "human", "value": QUESTION}],
        "chosen": {"from": "gpt", "value": ANSWER},
        "rejected": {"from": "gpt", "value": "It is 5."},
    }
    assert mapped(row) == {"prompt": [USER], "chosen": [ASSISTANT], "rejected": [WRONG]}


@pytest.mark.parametrize(
    ("given", "question"), [("", "Add."), (None, "Add."), ("2 and 2", "Add.\n\n2 and 2")], ids=repr
)
def test_alpaca_becomes_a_turn_and_its_answer(given: str | None, question: str) -> None:
    row = {"instruction": "Add.", "input": given, "output": ANSWER}
    assert mapped(row) == {"prompt": [{"role": "user", "content": question}], "completion": [ASSISTANT]}


def test_verl_becomes_a_prompt_with_what_compute_score_is_called_with() -> None:
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [USER],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"split": "train", "index": 0},
    }
    assert mapped(row) == {
        "prompt": [USER],
        "data_source": "openai/gsm8k",
        "ability": "math",
        "extra_info": {"split": "train", "index": 0},
        "ground_truth": "4",
    }


def test_openai_s_messages_have_their_blocks_and_arguments_unpacked() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 + 2?"}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
            ASSISTANT,
        ],
        "tools": json.dumps([{"type": "function", "function": {"name": "add"}}]),
        "parallel_tool_calls": False,
    }
    found = mapped(row)
    assert found["messages"][0] == USER
    assert found["messages"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 2}}
    assert found["tools"] == [{"type": "function", "function": {"name": "add"}}]


def test_openai_s_preference_becomes_prompt_chosen_and_rejected() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    row = {
        "input": {"messages": [SYSTEM, USER], "tools": tools, "parallel_tool_calls": True},
        "preferred_output": [ASSISTANT],
        "non_preferred_output": [WRONG],
    }
    assert mapped(row) == {"prompt": [SYSTEM, USER], "chosen": [ASSISTANT], "rejected": [WRONG], "tools": tools}
    with pytest.raises(RowError, match="input: expected an object with messages"):
        mapped(row | {"input": "What is 2 + 2?"})


def test_a_prompt_within_both_answers_is_taken_out() -> None:
    row = {"chosen": [SYSTEM, USER, ASSISTANT], "rejected": [SYSTEM, USER, WRONG]}
    expected = {"prompt": [SYSTEM, USER], "chosen": [ASSISTANT], "rejected": [WRONG]}
    assert mapped(row) == expected
    assert mapped(row | {"prompt": QUESTION}) == expected  # UltraFeedback has both columns


SAID = [USER, ASSISTANT, {"role": "user", "content": "Sure?"}]


@pytest.mark.parametrize(
    ("prompt", "beginning"),
    [
        ([USER], [USER]),
        ([USER], [SYSTEM, USER]),
        ([SYSTEM, USER], [SYSTEM, USER]),
        (SAID, SAID),
        ([USER], SAID),  # the answers differ only in their last turn
        (QUESTION, SAID),
        (f" {QUESTION}\n", [SYSTEM, USER]),
    ],
)
def test_whole_conversations_may_have_the_prompt_twice(prompt: Any, beginning: list[Any]) -> None:
    row = {"prompt": prompt, "chosen": [*beginning, ASSISTANT], "rejected": [*beginning, WRONG]}
    assert mapped(row) == {"prompt": beginning, "chosen": [ASSISTANT], "rejected": [WRONG]}


@pytest.mark.parametrize("prompt", ["Of Italy?", [ASSISTANT], [USER, USER], [SYSTEM, USER]], ids=str)
def test_a_prompt_that_the_answers_do_not_begin_with_is_refused(prompt: Any) -> None:
    with pytest.raises(RowError, match="prompt: is not what chosen and rejected begin with"):
        mapped({"prompt": prompt, "chosen": [USER, ASSISTANT], "rejected": [USER, WRONG]})
    with pytest.raises(RowError, match="prompt: is not what"):
        mapped({"prompt": [USER], "chosen": [USER, ASSISTANT], "rejected": [WRONG]})


@pytest.mark.parametrize("other", ["question", "instruction", "query"])
@pytest.mark.parametrize("as_messages", [False, True])
def test_another_column_may_be_the_prompt_of_a_preference(other: str, as_messages: bool) -> None:
    """The common beginning of two answers, "It is", is then not the prompt."""
    answers = ([ASSISTANT], [WRONG]) if as_messages else (ANSWER, "It is 5.")
    row = {other: QUESTION, "chosen": answers[0], "rejected": answers[1], "system": "Be brief."}
    with pytest.raises(
        RowError, match=rf"prompt: none, but a column '{other}': rename it, columns: {{prompt: {other}}}"
    ):
        mapped(row)
    assert mapped(row, columns={"prompt": other})["prompt"] == [SYSTEM, USER]
    whole = {"chosen": [USER, ASSISTANT], "rejected": [USER, WRONG]}
    assert mapped(whole | {other: QUESTION}) == mapped(whole)
    text = {"chosen": "Two and two? Four", "rejected": "Two and two? Five", other: "Two and two?"}
    assert mapped(text, columns={other: None})["prompt"] == "Two and two?"


@pytest.mark.parametrize("answers", [("good", "bad"), ([ASSISTANT], [WRONG])], ids=["text", "messages"])
def test_answers_without_a_common_beginning_have_no_prompt(answers: tuple[Any, Any]) -> None:
    with pytest.raises(RowError, match="prompt: none, and chosen and rejected have no common beginning"):
        mapped({"chosen": answers[0], "rejected": answers[1]})


CALLED = [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}]


@pytest.mark.parametrize("arguments", [{"a": 2}, '{"a": 2}'])
@pytest.mark.parametrize("several", [False, True])
def test_sharegpt_s_calls_become_tool_calls(arguments: Any, several: bool) -> None:
    call = {"name": "add", "arguments": arguments}
    turns = [
        {"from": "human", "value": QUESTION},
        {"from": "function_call", "value": json.dumps([call] if several else call)},
        {"from": "observation", "value": "4"},
        {"from": "gpt", "value": ANSWER},
    ]
    tools = json.dumps([{"name": "add", "description": "Add.", "parameters": {}}])
    assert mapped({"conversations": turns, "tools": tools}) == {
        "messages": [
            USER,
            {"role": "assistant", "content": "", "tool_calls": CALLED},
            {"role": "tool", "content": "4"},
            ASSISTANT,
        ],
        "tools": [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {}}}],
    }


@pytest.mark.parametrize("speakers", [("Human", "Assistant"), ("USER", "GPT"), ("user", "bing"), ("human", "model")])
def test_speakers_have_their_usual_names(speakers: tuple[str, str]) -> None:
    turns = [{"from": who, "value": said} for who, said in zip(speakers, (QUESTION, ANSWER), strict=True)]
    assert mapped({"conversations": turns}) == {"messages": [USER, ASSISTANT]}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": [USER, ASSISTANT]}, {"messages": [SYSTEM, USER, ASSISTANT]}),
        ({"prompt": QUESTION, "completion": ANSWER}, {"prompt": [SYSTEM, USER], "completion": [ASSISTANT]}),
        ({"prompt": [USER], "answer": 4}, {"prompt": [SYSTEM, USER], "answer": 4}),
        (
            {"prompt": QUESTION, "chosen": ANSWER, "rejected": "It is 5."},
            {"prompt": [SYSTEM, USER], "chosen": [ASSISTANT], "rejected": [WRONG]},
        ),
        ({"text": "a"}, {"text": "a"}),
    ],
    ids=["messages", "prompt_completion", "prompt", "preference", "text"],
)
def test_a_system_prompt_in_its_column_is_the_first_message(row: dict[str, Any], expected: dict[str, Any]) -> None:
    assert mapped(row | {"system": SYSTEM["content"]}) == expected
    assert mapped(row | {"system": ""}) == mapped(row) | (
        {} if "prompt" not in row or "chosen" in row else {"system": ""}
    )


@pytest.mark.parametrize(
    "mark",
    [
        {"weight": 0},
        {"train": False},
        {"loss": 0.0},
        {"masked": 1},
        {"loss_mask": [0, 0]},
        {"training": False},
        {"train": "false"},
    ],
)
def test_a_turn_that_is_not_to_be_learned_is_marked(mark: dict[str, Any]) -> None:
    turns = [USER | {"weight": None}, WRONG | mark, USER, ASSISTANT | {"weight": 1, "train": True, "masked": False}]
    assert mapped({"messages": turns}) == {"messages": [USER, WRONG | {"train": False}, USER, ASSISTANT]}
    # prompts are not learned anyway
    assert mapped({"prompt": turns[:3], "answer": "4"})["prompt"] == [USER, WRONG, USER]


@pytest.mark.parametrize(
    "mark", [{"weight": 1.0}, {"train": None}, {"label": None}, {"label": float("nan")}, {"label": "sums"}], ids=str
)
def test_a_row_may_say_that_it_is_learned(mark: dict[str, Any]) -> None:
    assert mapped({"messages": [USER, ASSISTANT], **mark}) == {"messages": [USER, ASSISTANT]}
    assert mapped({"text": "a", "label": 0}) == {"text": "a"}  # the class of a text


@pytest.mark.parametrize("label", [{"label": False}, {"kto_tag": "true"}, {"label": 1}, {"label": -1}], ids=str)
def test_a_conversation_keeps_its_label_for_kto(label: dict[str, Any]) -> None:
    turns = [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]
    assert mapped({"messages": [USER, ASSISTANT], "id": 3, **label}) == {"messages": [USER, ASSISTANT], **label}
    assert mapped({"conversations": turns, **label}) == {"messages": [USER, ASSISTANT], **label}


def test_a_common_beginning_of_texts_ends_with_a_word() -> None:
    row = {"chosen": "\n\nHuman: 2 + 2?\n\nAssistant: Four.", "rejected": "\n\nHuman: 2 + 2?\n\nAssistant: Five."}
    expected = {"prompt": "\n\nHuman: 2 + 2?\n\nAssistant:", "chosen": " Four.", "rejected": " Five."}
    assert mapped(row) == expected


def test_text_beside_messages_becomes_a_message() -> None:
    assert mapped({"prompt": QUESTION, "completion": [ASSISTANT]}) == {"prompt": [USER], "completion": [ASSISTANT]}
    assert mapped({"prompt": [USER], "completion": ANSWER}) == {"prompt": [USER], "completion": [ASSISTANT]}


def test_a_column_may_get_two_names() -> None:
    """One set of rows then serves SFT and a reward that compares with the answer."""
    twice = {"completion": "answer", "answer": "answer"}
    assert mapped({"prompt": "2+2=", "answer": "4"}, columns=twice) == {
        "prompt": "2+2=",
        "completion": "4",
        "answer": "4",
    }


def test_columns_are_renamed() -> None:
    renamed = {"prompt": "question", "completion": "answer"}
    assert mapped({"question": "a", "answer": "b", "id": 1}, columns=renamed) == {
        "prompt": "a",
        "completion": "b",
        "id": 1,
    }
    assert mapped({"prompt": "b", "answer": "a"}, columns={"prompt": "answer", "answer": "prompt"}) == {
        "prompt": "a",
        "answer": "b",
    }
    assert mapped({"prompt": "a", "image": [b"png"], "answer": "b"}, columns={"image": None}) == {
        "prompt": "a",
        "answer": "b",
    }


def test_a_given_format_decides_where_columns_fit_several() -> None:
    row = {"prompt": QUESTION, "messages": [USER, ASSISTANT], "chosen": [USER, ASSISTANT], "rejected": [USER, WRONG]}
    assert set(mapped(row)) == {"prompt", "chosen", "rejected"}
    assert mapped(row, format="messages") == {"messages": [USER, ASSISTANT]}
    assert mapped(row, format="prompt")["prompt"] == QUESTION


def test_what_was_changed_is_counted() -> None:
    converter = FormatConverter({}, None)
    row = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "score": 1}], "id": 7}
    for _ in range(3):
        converter.mapped(row, "line 1")
    assert converter.changes == {
        "conversations -> messages": 3,
        "messages[].from -> role": 3,
        "messages[].value -> content": 3,
        "messages[].role: human -> user": 3,
        "messages[].role: gpt -> assistant": 3,
        "dropped: messages[].score": 3,
        "dropped: id": 3,
    }


def test_every_format_can_be_asked_for() -> None:
    assert {each.name for each in FORMATS} == set(get_args(FormatName))


# Properties

_KNOWN: set[str] = {name for each in FORMATS for name in each.columns} | {"tools", "chat_template_kwargs"}
text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
conversation = st.lists(st.tuples(text, text), min_size=1, max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


@given(conversation)
def test_any_sharegpt_conversation_says_the_same_as_messages(turns: list[tuple[str, str]]) -> None:
    row = {
        "conversations": [
            {"from": who, "value": said} for turn in turns for who, said in zip(("human", "gpt"), turn, strict=True)
        ]
    }
    found = mapped(row)["messages"]
    assert [message["content"] for message in found] == [said for turn in turns for said in turn]
    assert [message["role"] for message in found] == ["user", "assistant"] * len(turns)


@given(text, st.dictionaries(text.filter(lambda name: name not in _KNOWN), json_values, max_size=3))
def test_whatever_columns_a_prompt_has_its_rewards_get(prompt: str, columns: dict[str, Any]) -> None:
    assert mapped({"prompt": prompt} | columns) == {"prompt": prompt} | columns


@given(text, text, text)
def test_prompt_and_answers_put_together_are_what_they_were(prompt: str, one: str, other: str) -> None:
    row = {"chosen": f"{prompt} {one}", "rejected": f"{prompt} {other}"}
    found = FormatConverter({}, None).mapped(row, "line 1")
    assert {name: found["prompt"] + found[name] for name in row} == row


@given(st.one_of(*(st.fixed_dictionaries(dict.fromkeys(columns, json_values)) for columns in COLUMNS.values())))
def test_any_values_are_valid_or_reported(row: dict[str, Any]) -> None:
    converter = FormatConverter({}, None)
    try:
        found = converter.mapped(row, "line 1")
    except RowError:
        return
    assert converter.format
    assert all(isinstance(problem, str) for problem in problems(found, converter.format.kind))


def test_a_mapped_row_is_mapped_to_itself(tmp_path: Path) -> None:
    alpaca = mapped({"instruction": "Add.", "input": "2 and 2", "output": ANSWER, "id": 3})
    assert mapped(alpaca) == alpaca
