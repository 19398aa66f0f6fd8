# ruff: noqa: E501 - the table reads better with a line for each case
"""Faults of data sets, each reported with the file, the line and the expected content."""

import gzip
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.job import StageError
from tests.rows.by_hand import both, facts, jsonl, prepared, record

USER = {"role": "user", "content": "What is the capital of France?"}
ASSISTANT = {"role": "assistant", "content": "Paris."}
CHAT = {"messages": [USER, ASSISTANT]}
PAIR = {"prompt": "2 + 2 =", "completion": " 4"}
PREFERENCE = {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}
TASK = {"prompt": "Add 2 and 2.", "answer": "4"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}}


def chat(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


def call(function: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


@dataclass(frozen=True)
class Case:
    fault: str
    row: Any  # the second line, after a valid one
    expected: str  # a part of the message
    good: dict[str, Any] = field(default_factory=lambda: CHAT)
    spec: dict[str, Any] = field(default_factory=dict)


CASES = [
    # lines without a row
    Case("not JSON", '{"messages": [', "not JSON"),
    Case("a list", [USER, ASSISTANT], "expected a JSON object, not a list"),
    Case("text", '"What is the capital of France?"', "expected a JSON object, not text"),
    Case("not UTF-8", b'{"prompt": "caf\xe9", "completion": "yes"}', "not UTF-8", good=PAIR),
    Case("a key twice", '{"prompt": "a", "prompt": "b", "completion": "c"}', "'prompt' occurs twice", good=PAIR),
    Case("nested too deeply", '{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply", good=TASK),
    Case("a million tokens", {"prompt": "word " * 1_000_000, "completion": "x"}, "larger than max_row_mb = 2 MB", good=PAIR),
    Case("a lone surrogate", '{"prompt": "a\\ud83d", "completion": "b"}', "prompt: a lone surrogate", good=PAIR),
    Case("a surrogate in a message", r'{"messages": [{"role": "user", "content": "\udc00"}, {"role": "assistant", "content": "a"}]}', r"messages\[0\].content: a lone surrogate"),
    # columns
    Case("an empty object", {}, "cannot tell the kind of row"),
    Case("unknown columns", {"query": "a", "reply": "b"}, "the columns are query, reply.*columns: {prompt: query}"),
    Case("another format", PAIR, "this row is prompt_completion, but .*line 1 is messages: one format per set"),
    Case("a preference among pairs", PREFERENCE, "this row is preference, but", good=PAIR),
    Case("a renamed column that is not there", PAIR, "no column 'question', which `columns` renames to prompt", good={"question": "a", "completion": "b"}, spec={"columns": {"prompt": "question"}}),
    Case("a renamed column that already exists", {"question": "a", "prompt": "b"}, "column 'prompt' already exists", good={"question": "a"}, spec={"columns": {"prompt": "question"}}),
    Case("not the format that was said", {"text": "a"}, "format: messages needs messages; the columns are text", spec={"format": "messages"}),
    Case("chosen without rejected", {"prompt": "a", "chosen": "b"}, "'chosen' without 'rejected'", good=PREFERENCE),
    # wrong types
    Case("a prompt that is a number", {"prompt": 4, "completion": "b"}, "prompt: text or a list of messages, not a number", good=PAIR),
    Case("a completion that is null", {"prompt": "4", "completion": None}, "completion: text or a list of messages, not null", good=PAIR),
    Case("text that is a list", {"text": ["a"]}, "text: text, not a list", good={"text": "b"}),
    Case(
        "messages as JSON",
        {"prompt": json.dumps([USER]), "completion": "yes"},
        "prompt: a list of messages, not text that holds JSON: decode it",
        good=PAIR,
    ),
    Case("nested JSON", {"messages": json.dumps([USER, ASSISTANT])}, "messages: a list of messages, not text that holds JSON"),
    Case("messages that is an object", {"messages": USER}, "messages: a list of messages, not an object"),
    Case("a message that is text", chat("Hello", ASSISTANT), r"messages\[0\]: an object with role and content, not text"),
    Case("content that is a number", chat(USER, {"role": "assistant", "content": 4}), r"messages\[1\].content: text, not a number"),
    Case("an image", chat({"role": "user", "content": [{"type": "image", "url": "a.png"}]}, ASSISTANT), r"messages\[0\].content: text, not .*'image'"),
    # roles and order
    Case("an unknown role", chat({"role": "bot", "content": "a"}, ASSISTANT), r"messages\[0\].role: one of system, developer, user, assistant, tool, not 'bot'"),
    Case("no role", chat({"content": "a"}, ASSISTANT), r"messages\[0\].role: one of .*, not null"),
    Case("no messages", chat(), "messages: at least one assistant turn"),
    Case("no assistant", chat(USER), "messages: at least one assistant turn"),
    Case("the assistant first", chat(ASSISTANT, USER, ASSISTANT), r"messages\[0\].role: user, not assistant"),
    Case("system in the middle", chat(USER, {"role": "system", "content": "a"}, ASSISTANT), r"messages\[1\].role: assistant, not system"),
    Case("user twice", chat(USER, USER, ASSISTANT), r"messages\[1\].role: assistant, not user"),
    Case("assistant twice", chat(USER, ASSISTANT, ASSISTANT), r"messages\[2\].role: user, not assistant"),
    Case("user last", chat(USER, ASSISTANT, USER), r"messages\[2\].role: the last turn must be the assistant's, not user"),
    Case("a tool that nobody called", chat(USER, ASSISTANT, {"role": "tool", "content": "4"}, ASSISTANT), r"messages\[2\].role: user, not tool"),
    Case("ShareGPT's own roles", {"conversations": [{"from": "alien", "value": "a"}, {"from": "gpt", "value": "b"}]}, r"messages\[0\].role: .*'alien'", good={"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}),
    Case("a prompt that ends with the assistant", {"prompt": [USER, ASSISTANT]}, r"prompt\[1\].role: the last turn must be the user's or a tool's, not assistant", good={"prompt": [USER]}),
    Case("a completion that begins with the user", {"prompt": [USER], "completion": [USER]}, r"completion\[0\].role: assistant, not user", good={"prompt": [USER], "completion": [ASSISTANT]}),
    Case("a completion of several turns", {"prompt": [USER], "completion": [ASSISTANT, USER, ASSISTANT]}, r"completion: one turn of the assistant, as all of it is learned, not 3; write the conversation as messages", good={"prompt": [USER], "completion": [ASSISTANT]}),
    Case("a preference of several turns", {"prompt": [USER], "chosen": [ASSISTANT, USER, ASSISTANT], "rejected": [ASSISTANT | {"content": "No."}]}, r"chosen: one turn of the assistant, as all of it is learned, not 3; move what both share", good={"prompt": [USER], "chosen": [ASSISTANT], "rejected": [ASSISTANT | {"content": "No."}]}),
    # empty rows
    Case("an empty completion", {"prompt": "a", "completion": " \n"}, "completion: non-empty text expected", good=PAIR),
    Case("an empty prompt", {"prompt": "", "answer": "4"}, "prompt: non-empty text expected", good=TASK),
    Case("an empty turn", chat(USER, {"role": "assistant", "content": ""}), r"messages\[1\].content: non-empty text expected"),
    Case("an empty preference", {"prompt": "a", "chosen": "b", "rejected": ""}, "rejected: non-empty text expected", good=PREFERENCE),
    Case("nothing to prefer", {"prompt": "a", "chosen": "b", "rejected": "b"}, "rejected: must differ from chosen", good=PREFERENCE),
    Case("nothing after the common beginning", {"chosen": "a b", "rejected": "a b c"}, "chosen: non-empty text expected", good={"chosen": "a b", "rejected": "a c"}),
    Case("a prompt that the answers do not begin with", {"prompt": "Of Italy?", "chosen": [USER, ASSISTANT], "rejected": [USER, ASSISTANT | {"content": "b"}]}, "prompt: is not what chosen and rejected begin with", good={"prompt": USER["content"], "chosen": [USER, ASSISTANT], "rejected": [USER, ASSISTANT | {"content": "b"}]}),
    Case("two system prompts", chat({"role": "system", "content": "a"}, USER, ASSISTANT, system="b"), "system: messages begins with a system prompt already", good=CHAT | {"system": "b"}),
    # tools
    Case("a call of ShareGPT's that is no JSON", {"conversations": [USER, {"from": "function_call", "value": "add 2 and 2"}]}, r"messages\[1\]: a function_call's value is JSON with name and arguments", good={"conversations": [USER, ASSISTANT]}),
    Case("a call as text", chat(USER, ASSISTANT | {"content": "<tool_call>{}</tool_call>"}, {"role": "tool", "content": "4"}, ASSISTANT), r"messages\[2\].role: user, not tool: the turn before it has no tool_calls"),
    Case("a call without a name", chat(USER, call({"arguments": {}})), r"messages\[1\].tool_calls\[0\]: expected a function's name, with"),
    Case("arguments that are no object", chat(USER, call({"name": "add", "arguments": "[1"})), r"messages\[1\].tool_calls\[0\]: .*arguments as an object"),
    Case("arguments with a key twice", chat(USER, call({"name": "add", "arguments": '{"a": null, "a": 2}'})), "key 'a' occurs twice in one object"),
    Case("a call of ShareGPT's with a key twice", {"conversations": [USER, {"from": "function_call", "value": '{"name": "add", "name": "sub"}'}]}, "JSON with name and arguments .key 'name' occurs twice", good={"conversations": [USER, ASSISTANT]}),
    Case("tools with a key twice", chat(USER, ASSISTANT, tools='[{"name": "add", "name": "sub"}]'), "key 'name' occurs twice"),
    Case("a call of the user's", chat(call({"name": "add"}) | {"role": "user"}, ASSISTANT), r"messages\[0\].tool_calls: only the assistant may call tools"),
    Case("a tool's name that is no text", chat(USER, call({"name": "add"}), {"role": "tool", "name": 4, "content": ""}, ASSISTANT), r"messages\[2\].name: text, not a number"),
    Case("tools that are no list", chat(USER, ASSISTANT, tools="add"), "tools: a list, not text"),
    Case("a tool without a name", chat(USER, ASSISTANT, tools=[{"type": "function"}]), r"tools\[0\]: expected a function's name"),
    Case("an option that cuts the text", chat(USER, ASSISTANT, chat_template_kwargs={"max_length": 4}), r"chat_template_kwargs.max_length: a variable of the chat template"),
    Case("an option that leaves out tokens", chat(USER, ASSISTANT, chat_template_kwargs={"tokenize": False}), "chat_template_kwargs.tokenize: a variable"),
    Case("an option that takes the place of the row", chat(USER, ASSISTANT, chat_template_kwargs={"conversations": []}), "chat_template_kwargs.conversations: a variable"),
    Case("options of the template that are text", chat(USER, ASSISTANT, chat_template_kwargs="a"), "chat_template_kwargs: an object, not text"),
    # turns that must not be learned
    Case("no turn to learn", chat(USER, ASSISTANT | {"weight": 0}), "messages: a turn that is to be learned expected"),
    Case("a fraction of a turn", chat(USER, ASSISTANT | {"weight": 0.5}), r"messages\[1\].weight: a turn is learned or not: .* not 0.5"),
    Case("a number beyond a float", '{"prompt": "a", "answer": 1e400}', "the number 1e400 is beyond a float of 64 bits", good={"prompt": "b"}),
    Case("half a character for rewards", r'{"prompt": "a", "answer": {"of": "\ud83d"}}', "answer.of: a lone surrogate", good={"prompt": "b"}),
    Case("half a character in a column's name", r'{"prompt": "a", "answer\ud83d": "b"}', ".*a lone surrogate", good={"prompt": "b"}),
    Case("two columns in upper and lower case", {"prompt": "a", "Prompt": "b"}, "columns 'prompt' and 'Prompt' differ in upper and lower case alone.*{Prompt: null}", good={"prompt": "b"}),
    Case("an answer beside verl's", {"prompt": "a", "reward_model": {"ground_truth": "1"}, "ground_truth": "2"}, "column 'ground_truth' already exists, but the format verl makes it of prompt, reward_model", good={"prompt": "a", "reward_model": {"ground_truth": "1"}, "ground_truth": "1"}),
    Case("a prompt beside Alpaca's", {"instruction": "a", "output": "b", "prompt": "c"}, "column 'prompt' already exists, but the format alpaca makes it of", good={"instruction": "a", "output": "b"}),
    Case("a user's turn to learn", chat(USER | {"train": True}, ASSISTANT), r"messages\[0\].train: only the assistant's turns are learned"),
    Case("a completion that is not to be learned", {"prompt": [USER], "completion": [ASSISTANT | {"train": False}]}, r"completion\[0\]: is not to be learned", good={"prompt": [USER], "completion": [ASSISTANT]}),
    Case("a chosen answer that is not to be learned", {"prompt": [USER], "chosen": [ASSISTANT | {"masked": True}], "rejected": [USER]}, r"chosen\[0\]: is not to be learned", good={"prompt": [USER], "chosen": [ASSISTANT], "rejected": [ASSISTANT | {"content": "b"}]}),
    Case("a text that is not to be learned", {"text": "a", "train": 0}, "train: 0: not to be learned", good={"text": "b", "train": 1}),
    Case("a text with a loss mask", {"text": "a", "loss_mask": [1, 0]}, r"loss_mask: \[1, 0\]: not to be learned", good={"text": "b", "loss_mask": [1, 1]}),
    Case("a rated preference", PREFERENCE | {"rating": 1}, "rating: all rows are learned alike", good=PREFERENCE),
    Case("a row's fraction", chat(USER, ASSISTANT, weight=0.3), "weight: 0.3: not to be learned as other rows are"),
    Case("axolotl's characters without a loss", chat(USER, ASSISTANT | {"train_detail": [{"begin_offset": 0, "end_offset": 1, "train": False}]}), r"messages\[1\].train_detail: a turn is learned or not"),
    Case("the old form of a call", chat(USER, {"role": "assistant", "function_call": {}}), r"messages\[1\]: 'function_call' is not supported; use tool_calls"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create the folder of the source."""
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.fault)
def test_a_fault_is_reported_with_file_line_and_what_is_expected(case: Case, tmp_path: Path) -> None:
    jsonl(tmp_path / "rows.jsonl", case.good, case.row)
    with pytest.raises(StageError) as caught:
        prepared(tmp_path / "job", path=str(tmp_path / "rows.jsonl"), held_out=0.0, **case.spec)
    (answer,) = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert re.match(rf"  rows\.jsonl, line 2: .*{case.expected}", answer), answer


def test_there_are_forty_data_sets_with_faults() -> None:
    assert len({case.fault for case in CASES}) >= 40


def test_all_problems_of_the_first_bad_rows_are_reported_together(folder: Path, tmp_path: Path) -> None:
    jsonl(folder / "a.jsonl", CHAT, chat(USER), "nonsense", chat({"role": "bot", "content": ""}, ASSISTANT))
    jsonl(folder / "b.jsonl", PAIR)
    with pytest.raises(StageError) as caught:
        prepared(tmp_path / "job", path=str(folder))
    message = str(caught.value)
    assert [line.split(":")[0].strip() for line in message.splitlines() if line.startswith("  ")] == [
        "a.jsonl, line 2",
        "a.jsonl, line 3",
        "a.jsonl, line 4",
        "a.jsonl, line 4",
        "b.jsonl, line 1",
    ]
    assert str(folder) in message and "faulty: drop" in message


def test_of_a_row_with_many_problems_the_first_are_reported(folder: Path, tmp_path: Path) -> None:
    jsonl(folder / "a.jsonl", chat(*[{"role": "bot", "content": "a"}] * 500))
    with pytest.raises(StageError) as caught:
        prepared(tmp_path / "job", path=str(folder))
    assert str(caught.value).count("a.jsonl, line 1: ") == 6
    assert "  a.jsonl, line 1: and 495 more" in str(caught.value)


def test_reading_stops_at_twenty_bad_rows(folder: Path, tmp_path: Path) -> None:
    jsonl(folder / "a.jsonl", *["nonsense"] * 1000)
    with pytest.raises(StageError) as caught:
        prepared(tmp_path / "job", path=str(folder))
    assert str(caught.value).count("not JSON") == 20
    assert "reading stopped there" in str(caught.value)


def test_faulty_rows_are_dropped_when_asked_counted_and_reported(folder: Path, tmp_path: Path) -> None:
    jsonl(folder / "a.jsonl", CHAT, chat(USER), "nonsense", chat({**USER, "content": "Of Italy?"}, ASSISTANT))
    rows = prepared(tmp_path / "job", path=str(folder), faulty="drop", held_out=0.0)
    assert len(both(rows)) == 2 and facts(rows)["faulty"] == 2
    assert [problem.split(":")[0] for problem in record(rows)["first_faulty"]] == ["a.jsonl, line 2", "a.jsonl, line 3"]


def test_a_row_that_is_too_large_is_skipped_without_being_held(folder: Path, tmp_path: Path) -> None:
    jsonl(folder / "a.jsonl", PAIR, {"prompt": "a" * 3_000_000, "completion": "b"}, {"prompt": "c", "completion": "d"})
    rows = prepared(tmp_path / "job", path=str(folder), faulty="drop", held_out=0.0)
    assert both(rows) == [PAIR, {"prompt": "c", "completion": "d"}]


def test_a_file_that_is_cut_short_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps(PAIR).encode() * 100)[:-20])
    with pytest.raises(StageError, match=r"a\.jsonl\.gz, after line 0: damaged or truncated"):
        prepared(tmp_path / "job", path=str(folder))


def test_a_json_file_that_is_no_list_of_rows_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "a.json").write_text('[{"prompt": "a", "completion": "b"},\n 4,\n {"prompt": "c" "completion": "d"}]')
    with pytest.raises(StageError, match=r"a\.json: not JSON \(Expecting ',' delimiter: line 3 column 17"):
        prepared(tmp_path / "job", path=str(folder / "*.json"))
    (folder / "b.json").write_text('[{"prompt": "a", "completion": "b"}, 4]')
    with pytest.raises(StageError, match=r"b\.json, row 2: expected a JSON object, not a number"):
        prepared(tmp_path / "again", path=str(folder / "b.json"))


def test_a_set_without_rows_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "a.jsonl").write_text("\n\n")
    with pytest.raises(StageError, match="no rows"):
        prepared(tmp_path / "job", path=str(folder))


def test_a_set_whose_rows_are_all_faulty_is_refused_with_the_first_of_them(folder: Path, tmp_path: Path) -> None:
    jsonl(folder / "a.jsonl", "nonsense", chat(USER))
    with pytest.raises(StageError, match=r"no rows; 2 are faulty:\n  a\.jsonl, line 1: not JSON"):
        prepared(tmp_path / "job", path=str(folder), faulty="drop")


def test_a_set_whose_rows_all_fall_into_one_part_is_refused(folder: Path, tmp_path: Path) -> None:
    jsonl(folder / "a.jsonl", *[{"prompt": "Go!", "seed": number} for number in range(50)])
    with pytest.raises(StageError, match=r"the held-out split is empty: 50 rows, distinct prompts: 1 "):
        prepared(tmp_path / "job", path=str(folder))
