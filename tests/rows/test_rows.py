"""The engine: the rows that it keeps, their splits, and its report about the others."""

import json
import random
import subprocess
import sys
import tempfile
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import write_manifest
from baton.tasks.data.documents import SPLITS, Split, SplitWriter, document
from baton.tasks.rows.rows import peek, work
from baton.tasks.rows.spec import RowsSpec
from baton.tasks.rows.stored import reward_columns
from tests.rows.by_hand import both, digest, facts, jsonl, new_job, notices, prepared, record, split

ROWS = [{"prompt": f"What is {number} + {number}?", "answer": str(2 * number)} for number in range(200)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return jsonl(tmp_path / "rows.jsonl", *ROWS)


def test_every_row_is_in_one_part_in_its_order(source: Path, tmp_path: Path) -> None:
    rows = prepared(tmp_path / "job", path=str(source), held_out=0.2)
    train, held_out = split(rows, "train"), split(rows, "held_out")
    assert [row for row in ROWS if row in train] == train
    assert [row for row in ROWS if row in held_out] == held_out
    assert len(train) + len(held_out) == len(ROWS)
    assert facts(rows) == {
        "row_kind": "prompt",
        "format": "prompt",
        "conversational": False,
        "columns": ["prompt", "answer"],
        "rows": len(train),
        "held_out_rows": len(held_out),
        "duplicates": 0,
        "faulty": 0,
        "contaminated": 0,
    }
    assert 20 <= len(held_out) <= 60


def test_the_same_rows_give_the_same_bytes_wherever_they_are(source: Path, tmp_path: Path) -> None:
    one = prepared(tmp_path / "one", path=str(source))
    (tmp_path / "elsewhere").mkdir()
    moved = source.rename(tmp_path / "elsewhere" / "rows.jsonl")
    assert digest(prepared(tmp_path / "two", path=str(moved))) == digest(one)


def test_a_seed_holds_out_other_rows(source: Path, tmp_path: Path) -> None:
    one = prepared(tmp_path / "one", path=str(source))
    other = prepared(tmp_path / "other", path=str(source), seed=1)
    assert split(one, "held_out") != split(other, "held_out")


@pytest.mark.parametrize(("held_out", "full", "empty"), [(0.0, "train", "held_out"), (1.0, "held_out", "train")])
def test_all_rows_can_be_on_one_side(source: Path, tmp_path: Path, held_out: float, full: Split, empty: Split) -> None:
    rows = prepared(tmp_path / "job", path=str(source), held_out=held_out)
    assert split(rows, full) == ROWS and split(rows, empty) == []


def test_rows_with_one_prompt_are_on_one_side(tmp_path: Path) -> None:
    answers = [{"prompt": row["prompt"], "completion": answer} for row in ROWS for answer in ("a", "b", "c")]
    rows = prepared(tmp_path / "job", path=str(jsonl(tmp_path / "a.jsonl", *answers)), held_out=0.5)
    asked = {name: {row["prompt"] for row in split(rows, name)} for name in ("train", "held_out")}  # type: ignore[arg-type]
    assert not asked["train"] & asked["held_out"]


def test_what_rewards_are_called_with(source: Path, tmp_path: Path) -> None:
    rows = prepared(tmp_path / "job", path=str(source))
    assert reward_columns(both(rows)[:1]) == {"answer": ["0"]}
    assert reward_columns([{"prompt": "a", "text": "b", "completion": "c"}]) == {"text": ["b"], "completion": ["c"]}


def test_a_prompt_s_further_columns_may_have_trl_s_names(tmp_path: Path) -> None:
    given = [{"prompt": f"Sum up {n}.", "text": "a", "messages": ["b"], "chosen": 1, "rejected": 2} for n in range(50)]
    source = jsonl(tmp_path / "a.jsonl", *given)
    rows = prepared(tmp_path / "job", path=str(source), format="prompt", held_out=0.0)
    assert both(rows) == given and facts(rows)["conversational"] is False


def test_a_summary_is_recorded_and_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [
        [{"from": "human", "value": f"Question {number}"}, {"from": "gpt", "value": "Answer"}] for number in range(50)
    ]
    source = jsonl(tmp_path / "a.jsonl", *({"conversations": each, "id": 1} for each in [*turns, turns[0]]))
    rows = prepared(tmp_path / "job", path=str(source))
    assert record(rows)["changes"]["conversations -> messages"] == 51
    assert record(rows)["duplicates"] == 1
    output = capsys.readouterr().out
    assert "format sharegpt, rows of kind messages" in output
    assert "in 51 rows: dropped: id" in output
    assert "1 duplicates" in output


def test_an_interrupted_attempt_leaves_no_trace(source: Path, tmp_path: Path) -> None:
    whole = digest(prepared(tmp_path / "whole", path=str(source)))
    leftover = tmp_path / "again" / "output" / "more.jsonl"
    job = new_job(tmp_path / "again", "rows", {"path": str(source)})
    leftover.parent.mkdir()
    leftover.write_text("{}")
    subprocess.run([sys.executable, "-m", "baton.tasks.rows.rows", str(job.directory)], check=True, timeout=60)
    assert digest(job.output) == whole


def test_rows_of_a_corpus_that_has_held_out_documents_alone(tmp_path: Path) -> None:
    """The second generation of continuous training may have this kind of corpus."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    held_out, train = SplitWriter(corpus, "held_out"), SplitWriter(corpus, "train")
    held_out.add(document("a.txt", "one"))
    held_out.close()
    train.close()
    write_manifest(corpus, "corpus", {})
    source = "def rows(documents):\n    return ({'prompt': each['text'], 'answer': 'two'} for each in documents)\n"
    function = {"name": "own.py:rows", "source": {"own.py": source}}
    job = new_job(tmp_path / "job", "rows", {"function": function, "documents": True}, **{"corpora.0": corpus})
    work(job)
    assert split(job.output, "held_out") == [{"prompt": "one", "answer": "two"}]
    assert split(job.output, "train") == []


def test_a_limit_of_rows_made_of_documents_is_one_of_each_split(tmp_path: Path) -> None:
    """The limit must not leave a set that can only be evaluated."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in SPLITS:
        writer = SplitWriter(corpus, name)
        for number in range(9):
            writer.add(document(f"{number}.txt", f"{name} {number}"))
        writer.close()
    write_manifest(corpus, "corpus", {})
    source = "def rows(documents):\n    return ({'prompt': each['text'], 'answer': 'two'} for each in documents)\n"
    spec = {"function": {"name": "own.py:rows", "source": {"own.py": source}}, "documents": True, "limit": 5}
    job = new_job(tmp_path / "job", "rows", spec, **{"corpora.0": corpus})
    work(job)
    assert {name: len(split(job.output, name)) for name in SPLITS} == {"train": 5, "held_out": 5}


def test_a_limit_takes_the_first_rows(source: Path, tmp_path: Path) -> None:
    assert both(prepared(tmp_path / "job", path=str(source), limit=10, held_out=0.0)) == ROWS[:10]


def test_a_peek_says_what_the_first_rows_are_and_what_is_wrong(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ROWS[0], {"prompt": ""}, ROWS[1], *["nonsense"] * 100)
    first = peek(RowsSpec(path=str(source)), tmp_path, 3)
    assert (first.rows, first.kind) == (ROWS[:2], "prompt")
    assert first.faults == ["a.jsonl, line 2: prompt: non-empty text expected"]


def test_a_large_set_takes_little_memory(tmp_path: Path) -> None:
    """24 MB of rows, of which only a few are in memory."""
    source = tmp_path / "large.jsonl"
    with source.open("w") as stream:
        for number in range(500):
            stream.write(json.dumps({"text": f"{number} " + "lorem ipsum " * 4000}) + "\n")
    job = new_job(tmp_path / "job", "rows", {"path": str(source), "held_out": 0.01})
    program = (
        "import resource, sys; from pathlib import Path;"
        "from baton.tasks.core.job import open_job; from baton.tasks.rows.rows import work;"
        "start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; work(open_job(Path(sys.argv[1])));"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start)"
    )
    words = [sys.executable, "-c", program, str(job.directory)]
    output = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout
    assert int(output.split()[-1]) < 20_000  # peak memory in kB


def test_columns_that_json_has_no_word_for_make_no_row_faulty(tmp_path: Path) -> None:
    columns = {
        "prompt": ["a?", "b?"],
        "completion": ["a", "b"],
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5), None]),
        "price": pa.array([Decimal("1.50"), Decimal(2)]),
        "score": pa.array([float("nan"), 0.5]),
        "tags": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
        "image": pa.array([{"bytes": b"png", "path": None}, None]),
        "year": pa.array([None, 2**62], pa.timestamp("us")),
        "class": pa.array(["x", "y"]).dictionary_encode(),
        "nested": [{"on": [date(2026, 1, 2)], "by": None}, {"by": 1.0}],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    made = prepared(tmp_path / "job", path=str(tmp_path / "a.parquet"), held_out=0.0)
    first = {"prompt": "a?", "completion": "a", "at": "2026-01-02T03:04:05", "price": "1.50", "score": None}
    second = {"prompt": "b?", "completion": "b", "at": None, "price": "2.00", "score": 0.5}
    assert both(made) == [
        first | {"tags": {"k": 1}, "class": "x", "nested": {"on": ["2026-01-02"]}, "year": None},
        second | {"tags": {}, "class": "y", "nested": {"by": 1.0}},
    ]
    unused, not_finite, incomplete = notices(made)
    assert "image: bytes, which JSON cannot represent (1 rows)" in unused and "; year: " in unused
    assert not_finite == "score: NaN or infinite -> null in 1 rows"
    assert incomplete == "column year: missing in 1 of 2 rows"


def test_rows_may_have_different_columns_and_the_user_is_notified(tmp_path: Path) -> None:
    """Two files of a table may differ in this way. Only a reward can determine whether this matters."""
    rows = [{"prompt": "a", "answer": "4"}, {"prompt": "b", "answer": 4}, {"prompt": "c", "anwser": "4"}]
    made = prepared(tmp_path / "job", path=str(jsonl(tmp_path / "a.jsonl", *rows)), held_out=0.0)
    assert both(made) == rows
    assert notices(made) == [
        "column answer: missing in 1 of 3 rows",
        "column answer: values of several types: 1 text, 1 a number",
        "column anwser: missing in 2 of 3 rows",
    ]


def test_a_value_that_json_cannot_represent_is_null_in_a_column_that_has_others(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": 4}, '{"prompt": "b", "answer": NaN}', {"prompt": "c", "answer": 5}]
    made = prepared(tmp_path / "job", path=str(jsonl(tmp_path / "a.jsonl", *rows)), held_out=0.0)
    assert [row["answer"] for row in both(made)] == [4, None, 5]
    assert notices(made) == ["answer: NaN or infinite -> null in 1 rows"]


def test_numbers_are_kept_and_one_that_is_rounded_is_named(tmp_path: Path) -> None:
    row = '{"prompt": "a", "large": 123456789012345678901234567890, "exact": 0.1, "pi": 3.14159265358979323846}'
    made = prepared(tmp_path / "job", path=str(jsonl(tmp_path / "a.jsonl", row)), held_out=0.0)
    assert both(made) == [
        {"prompt": "a", "large": 123456789012345678901234567890, "exact": 0.1, "pi": 3.141592653589793}
    ]
    assert notices(made) == ["pi: more digits than a float of 64 bits has -> rounded in 1 rows"]


@pytest.mark.parametrize("answers", [{"completion": "{}4"}, {"chosen": "{}4", "rejected": " {}5"}])
def test_answers_that_begin_with_the_prompt_are_named(answers: dict[str, str], tmp_path: Path) -> None:
    """A set with both the prompt and the full text has these answers."""
    asked = [f"{number} + 1 = " for number in range(5)]
    both_times = [{"prompt": one} | {name: text.format(one) for name, text in answers.items()} for one in asked[:3]]
    once = [{"prompt": one} | {name: text.format("") for name, text in answers.items()} for one in asked[3:]]
    made = prepared(tmp_path / "job", path=str(jsonl(tmp_path / "a.jsonl", *both_times, *once)), held_out=0.0)
    assert [text.partition(",")[0] for text in notices(made)] == ["the answers of 3 of 5 rows begin with the prompt"]
    made = prepared(tmp_path / "again", path=str(jsonl(tmp_path / "b.jsonl", *both_times[:2], *once)), held_out=0.0)
    assert notices(made) == []


def test_what_is_not_learned_is_named_once(tmp_path: Path) -> None:
    turns: list[dict[str, Any]] = [{"role": "user", "content": "a", "id": 4}, {"role": "assistant", "content": "b"}]
    rows = [{"messages": turns, "id": number, "image": "x", "lang": "en" if number else None} for number in range(2)]
    turns[0]["content"] = "c"
    source = str(jsonl(tmp_path / "a.jsonl", *rows, {"messages": []}))
    made = prepared(tmp_path / "job", path=source, faulty="drop", held_out=0.0)
    unused, left_out = notices(made)
    assert unused == (
        "neither learned nor given to rewards: id (2 rows); image (2 rows); lang (1 rows); messages[].id (2 rows)"
    )
    assert left_out == "1 faulty rows are left out: a.jsonl, line 3: messages: at least one assistant turn expected"
    columns = {"id": None, "image": None, "lang": None, "nowhere": None}
    made = prepared(tmp_path / "again", path=source, faulty="drop", held_out=0.0, columns=columns)
    assert notices(made)[:2] == [
        "neither learned nor given to rewards: messages[].id (2 rows)",
        "columns: nowhere: null: no row has this column",
    ]


# Properties

some_rows = st.lists(
    st.fixed_dictionaries({"prompt": st.integers(0, 300).map(lambda n: f"Question {n}"), "answer": st.integers(0, 3)}),
    min_size=1,
    max_size=40,
)


def parts(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the rows of each split of a set."""
    with tempfile.TemporaryDirectory() as folder:
        source = jsonl(Path(folder, "a.jsonl"), *[*rows, *ALWAYS])
        made = prepared(Path(folder, "job"), path=str(source), held_out=0.3)
        return {name: [json.dumps(row) for row in split(made, name)] for name in ("train", "held_out")}  # type: ignore[arg-type]


ALWAYS = [{"prompt": f"Always {number}", "answer": 0} for number in range(40)]  # ensures that no split is ever empty


@settings(max_examples=12)
@given(some_rows, some_rows)
def test_more_rows_move_no_row_to_the_other_part(rows: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    before, after = parts(rows), parts(rows + more)
    for name, found in before.items():
        assert set(found) <= set(after[name])


@settings(max_examples=12)
@given(some_rows, st.randoms(use_true_random=False))
def test_another_order_gives_the_same_sets_and_duplicates_are_dropped(
    rows: list[dict[str, Any]], order: random.Random
) -> None:
    before = parts(rows)
    again = [*rows, *rows]
    order.shuffle(again)
    after = parts(again)
    for name, found in before.items():
        assert sorted(after[name]) == sorted(found)
        assert len(set(found)) == len(found)


def test_a_stage_without_a_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="exactly one of path, huggingface, function"):
        prepared(tmp_path / "job")
