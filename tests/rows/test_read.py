"""Rows from files, data sets and functions."""

import gzip
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from baton.tasks.core.job import StageError
from tests.rows.by_hand import both, facts, jsonl, notices, prepared

ROWS: list[dict[str, Any]] = [{"prompt": f"Question {number}", "completion": f"Answer {number}"} for number in range(5)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("a.jsonl", b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\r\n")),
        ("a.jsonl.gz", gzip.compress(LINES)),
        ("a.jsonl.zst", zstd(LINES)),
        ("a.parquet", parquet(ROWS)),
        ("a.json", json.dumps(ROWS, indent=2).encode()),
        ("a.json", LINES),
    ],
    ids=["jsonl", "jsonl as Windows writes it", "gzip", "zstd", "parquet", "a JSON list", "lines in a .json"],
)
def test_a_file_of_rows_is_read(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert both(prepared(tmp_path / "job", path=str(tmp_path / name), held_out=0.0)) == ROWS


@pytest.mark.parametrize("path", ["in", "in/*.jsonl", "in/**/*.jsonl"])
def test_the_files_of_a_folder_or_a_glob_are_read_by_name(path: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, row in enumerate(ROWS):
        jsonl(tmp_path / "in" / f"{number}.jsonl", row)
    (tmp_path / "in" / "dataset_info.json").write_text('{"splits": ["train"]}')
    assert both(prepared(tmp_path / "job", path=str(tmp_path / path), held_out=0.0)) == ROWS


def test_messages_in_parquet_lose_what_arrow_filled_in(tmp_path: Path) -> None:
    """The content of a turn with calls keeps its null, as in OpenAI's format."""
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}], "tools": "[]"},
        {"messages": [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}], "tools": None},
    ]
    (tmp_path / "a.parquet").write_bytes(parquet(rows))
    first, second = both(prepared(tmp_path / "job", path=str(tmp_path / "a.parquet"), held_out=0.0))
    assert first["messages"][1] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
    }
    assert second == {"messages": rows[1]["messages"]}


def test_text_in_parquet_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    raw = pa.array([b"fine", b"caf\xe9"]).view(pa.string())
    pq.write_table(pa.table({"text": raw}), tmp_path / "a.parquet")
    with pytest.raises(StageError, match=r"a\.parquet, row 2: text: not UTF-8"):
        prepared(tmp_path / "job", path=str(tmp_path / "a.parquet"))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """pandas and SQL joins may produce these columns; rows would keep only the last one."""
    table = pa.table([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], names=["prompt", "completion", "prompt"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(StageError, match=r"a\.parquet: there are several columns 'prompt'"):
        prepared(tmp_path / "job", path=str(tmp_path / "a.parquet"))


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet(ROWS)[:-100])
    with pytest.raises(StageError, match=r"a\.parquet.*not readable as Parquet"):
        prepared(tmp_path / "job", path=str(tmp_path / "a.parquet"))


def test_a_data_set_of_the_hub_is_read_from_its_folder(tmp_path: Path) -> None:
    DatasetDict({"test": Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "set")
    asked = {"name": str(tmp_path / "set"), "split": "test"}
    assert both(prepared(tmp_path / "job", huggingface=asked, held_out=0.0)) == ROWS


def test_a_data_set_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="dataset 'nobody/nothing'"):
        prepared(tmp_path / "job", huggingface={"name": "nobody/nothing"})


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A user's folder with a function and the module that it imports."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "words.py").write_text("QUESTION = 'What is {} + {}?'\n")
    (tmp_path / "code" / "sums.py").write_text(
        "import random\nfrom words import QUESTION\n\n"
        "def rows(seed, limit=None):\n"
        "    random.seed(seed)\n"
        "    while True:\n"
        "        a, b = random.randrange(100), random.randrange(100)\n"
        "        yield {'prompt': QUESTION.format(a, b), 'answer': a + b}\n\n"
        "def breaks():\n"
        "    yield {'prompt': 'a'}\n"
        "    1 / 0\n\n"
        "def the_same():\n"
        "    row = {'prompt': [{'role': 'user', 'content': ''}], 'numbers': []}\n"
        "    for number in range(70):\n"
        "        row['prompt'][0]['content'] = f'Is {number} even?'\n"
        "        row['numbers'].append(number)\n"
        "        yield row\n\n"
        "def exits():\n"
        "    yield {'prompt': 'a'}\n"
        "    raise SystemExit(0)\n\n"
        "def missing():\n"
        "    return [{'prompt': 'a', 'tools': float('nan'), 'chat_template_kwargs': float('nan')}]\n\n"
        "def numbers():\n"
        "    return [{'prompt': 'a'}, 4]\n"
    )
    return tmp_path / "code"


def from_function(job: Path, **spec: Any) -> Path:
    """Make the set of rows of a function, after forgetting the modules of earlier tests, as in a new process."""
    for name in ("sums", "words"):
        sys.modules.pop(name, None)
    return prepared(job, **spec)


def spec_of(code: Path, name: str) -> dict[str, Any]:
    """Return the spec of a function with its embedded source; the folder does not exist when the engine runs."""
    from baton.tasks.user_code.functions import Function

    return Function(name=f"{code / 'sums.py'}:{name}").pinned().model_dump(mode="json")


def test_a_function_s_rows_are_read_with_the_seed_and_up_to_the_limit(code: Path, tmp_path: Path) -> None:
    function = spec_of(code, "rows")
    os.rename(code, tmp_path / "gone")  # noqa: PTH104
    one = both(from_function(tmp_path / "one", function=function, limit=30, held_out=0.2))
    other = both(from_function(tmp_path / "other", function=function, limit=30, held_out=0.2, seed=1))
    assert len(one) == len(other) == 30 and one != other
    assert all(set(row) == {"prompt", "answer"} for row in one)


def test_arguments_that_a_function_does_not_take_are_refused(code: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"sums\.py:exits: has no parameter 'level', which `arguments` gives; it has "):
        from_function(tmp_path / "job", function=spec_of(code, "exits"), arguments={"level": 3})


def test_a_function_with_any_parameters_gets_the_arguments(code: Path, tmp_path: Path) -> None:
    with (code / "sums.py").open("a") as stream:
        stream.write("\ndef given(seed, **more):\n    return [{'prompt': 'a', 'seed': seed, **more}]\n")
    rows = both(from_function(tmp_path / "job", function=spec_of(code, "given"), arguments={"level": 3}, held_out=0.0))
    assert rows == [{"prompt": "a", "seed": 0, "level": 3}]


def test_an_exception_in_a_function_names_its_file_and_line(code: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"after row 1: ZeroDivisionError: .*\(sums\.py, line 12: 1 / 0\)"):
        from_function(tmp_path / "job", function=spec_of(code, "breaks"))


def test_a_function_may_yield_the_same_object_again(code: Path, tmp_path: Path) -> None:
    found = both(from_function(tmp_path / "job", function=spec_of(code, "the_same"), held_out=0.0))
    assert [row["prompt"][0]["content"] for row in found] == [f"Is {number} even?" for number in range(70)]
    assert [len(row["numbers"]) for row in found] == [*range(1, 71)]


def test_a_function_that_exits_is_named(code: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"after row 1: SystemExit: 0 \(sums\.py, line \d+: "):
        from_function(tmp_path / "job", function=spec_of(code, "exits"))


def test_options_that_pandas_lacks_are_absent(code: Path, tmp_path: Path) -> None:
    assert both(from_function(tmp_path / "job", function=spec_of(code, "missing"), held_out=0.0)) == [{"prompt": "a"}]


def test_what_a_function_gives_is_checked_as_a_file_is(code: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"sums\.py:numbers, row 2: expected a JSON object, not a number"):
        from_function(tmp_path / "job", function=spec_of(code, "numbers"))


def weather(number: int) -> dict[str, Any]:
    """Return rows of which every second one has another tool, with another parameter."""
    name, argument = ("calendar", {"day": number}) if number % 2 else ("weather", {"city": f"city {number}"})
    properties = {each: {"type": "integer" if each == "day" else "string"} for each in argument}
    call = {"type": "function", "function": {"name": name, "arguments": argument}}
    return {
        "messages": [
            {"role": "user", "content": f"Look up {number}"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": name, "content": "ok"},
            {"role": "assistant", "content": "done"},
        ],
        "tools": [{"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}],
    }


TOOLS = [weather(number) for number in range(6)]
ANSWERED = [
    {"prompt": f"{n}?", "extra_info": {"of": [{f"key{n % 2}": n}]}, "hint": f"{n}" if n % 2 else None} for n in range(6)
]
FUNCTIONS = """
import datasets, pyarrow as pa
from rows import ROWS
def table(): return pa.Table.from_pylist(ROWS)
def batches(): yield from pa.Table.from_pylist(ROWS).to_batches(max_chunksize=2)
def dataset(): return datasets.Dataset.from_list(ROWS)
def stream(): yield datasets.Dataset.from_list(ROWS).to_iterable_dataset()
"""


NULL_CONTENT = [json.loads(json.dumps(row).replace('"content": "", "tool', '"content": null, "tool')) for row in TOOLS]


@pytest.mark.parametrize(
    "rows", [TOOLS, NULL_CONTENT, ANSWERED], ids=["tools", "null beside calls", "columns for rewards"]
)
@pytest.mark.parametrize("how", ["parquet", "saved", "loaded", "table", "batches", "dataset", "stream"])
def test_rows_are_the_same_through_arrow_as_from_jsonl(rows: list[dict[str, Any]], how: str, tmp_path: Path) -> None:
    source: dict[str, Any]
    if how == "parquet":
        (tmp_path / "a.parquet").write_bytes(parquet(rows))
        source = {"path": str(tmp_path / "a.parquet")}
    elif how in ("saved", "loaded"):
        (tmp_path / "set").mkdir()
        if how == "saved":
            Dataset.from_list(rows).save_to_disk(tmp_path / "set")
        else:
            jsonl(tmp_path / "set" / "train.jsonl", *rows)
        source = {"huggingface": {"name": str(tmp_path / "set")}}
    else:
        source = {"function": {"name": f"own.py:{how}", "source": {"own.py": FUNCTIONS, "rows.py": f"ROWS = {rows}"}}}
        for name in ("own", "rows"):
            sys.modules.pop(name, None)
    assert both(prepared(tmp_path / "job", **source, held_out=0.0)) == rows


def test_null_of_json_reaches_rewards_and_template_as_it_was_given(tmp_path: Path) -> None:
    rows = [weather(0), weather(1)]
    rows[0]["messages"][1]["tool_calls"][0]["function"]["arguments"] = {"city": None}
    rows[0]["tools"][0]["function"]["parameters"] |= {"default": None}
    assert both(prepared(tmp_path / "one", path=str(jsonl(tmp_path / "a.jsonl", *rows)), held_out=0.0)) == rows
    rows = [{"prompt": "a", "extra_info": {"of": None}}, {"prompt": "b", "extra_info": {"of": {"in": [None]}}}]
    assert both(prepared(tmp_path / "two", path=str(jsonl(tmp_path / "b.jsonl", *rows)), held_out=0.0)) == rows


def test_null_in_a_message_is_kept_as_its_row_has_it(tmp_path: Path) -> None:
    row = {
        "messages": [
            {"role": "user", "content": "a", "name": None, "tool_calls": None},
            {"role": "assistant", "content": "b", "reasoning_content": None},
        ]
    }
    assert both(prepared(tmp_path / "one", path=str(jsonl(tmp_path / "a.jsonl", row)), held_out=0.0)) == [row]


def test_json_in_a_parquet_column_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    messages = '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "content": "c"}]'
    table = pa.table({"messages": pa.array([messages], pa.json_())})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(StageError, match=r"row 1: messages: not JSON \('content' occurs twice in one object"):
        prepared(tmp_path / "job", path=str(tmp_path / "a.parquet"), held_out=0.0)


def test_null_that_arrow_has_filled_in_before_is_named(tmp_path: Path) -> None:
    """The file was written from a dataset as JSON."""
    rows = pa.Table.from_pylist(TOOLS).to_pylist()
    made = prepared(tmp_path / "job", path=str(jsonl(tmp_path / "a.jsonl", *rows)), held_out=0.0)
    assert both(made) != TOOLS
    notice = notices(made)
    assert "tool_calls[].function.arguments has null in 6 rows where Arrow fills in" in notice[0]
    assert "tools[].function.parameters.properties has null in 6 rows" in notice[1]


def test_a_column_that_is_null_in_all_first_rows_decides_nothing(tmp_path: Path) -> None:
    """A table with several kinds of rows has such columns."""
    rows = [
        {"prompt": f"{n}?", "completion": "a", "chosen": None, "rejected": None, "messages": None} for n in range(4)
    ]
    (tmp_path / "a.parquet").write_bytes(parquet(rows))
    made = prepared(tmp_path / "job", path=str(tmp_path / "a.parquet"), held_out=0.0)
    assert facts(made)["row_kind"] == "prompt_completion"
    rows[0]["completion"] = None
    source = jsonl(tmp_path / "b.jsonl", *rows)
    made = prepared(tmp_path / "again", path=str(source), held_out=0.0, faulty="drop")
    assert (facts(made)["row_kind"], facts(made)["faulty"]) == ("prompt_completion", 1)
