"""The choice and order of the rows of a run."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.job import Job, StageError, open_job
from tasks.posttrain.rows import choose, in_order, kind_of, say_repeats
from tasks.posttrain.spec import PostTrainSpec
from tests.posttrain.tiny import said_twice, tiny_rows, write_job

LIMITS = PostTrainSpec(data="twice", max_prompt_tokens=10, max_new_tokens=5).limits(256)


def written(folder: Path, rows: list[Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_seed_decides_the_order(tmp_path: Path) -> None:
    path = written(tmp_path, [{"number": number} for number in range(50)])

    first, again, other = ([row["number"] for row in in_order(path, seed)] for seed in (1, 1, 2))

    assert sorted(first) == list(range(50))
    assert first == again != other != sorted(other)


@given(st.sets(st.text(), min_size=1), st.sets(st.text()), st.integers(0, 2**31 - 1))
def test_more_rows_leave_the_others_in_their_order(rows: set[str], more: set[str], seed: int) -> None:
    def texts(some: list[str]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            return [row["text"] for row in in_order(written(Path(folder), [{"text": text} for text in some]), seed)]

    after = texts(sorted(rows | more, reverse=True))

    assert [text for text in after if text in rows] == texts(sorted(rows))


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    def make(rows: list[dict[str, Any]], kind: str = "prompt_completion") -> Job:
        return open_job(write_job(tmp_path / "job", "sft", {}, rows=tiny_rows(tmp_path / "rows", rows, kind)))

    return make


def test_no_more_rows_are_taken_than_the_run_needs(job: Callable[..., Job]) -> None:
    chosen = choose(job(said_twice(40)), 0, LIMITS, str, lambda row: (1,), 12)

    assert len(chosen.rows) == 12 and chosen.counts() == {"rows": 12, "rows_too_long": 0}


def test_rows_that_are_too_long_are_skipped_and_counted(
    job: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": "x" * length} for length in range(1, 21)]

    chosen = choose(job(rows), 0, LIMITS, lambda row: str(row["text"]), lambda text: (len(text),), 16)

    assert chosen.counts() == {"rows": 15, "rows_too_long": 5}
    assert capsys.readouterr().out == (
        "5 of 20 rows are longer than max_prompt_tokens 10 and max_new_tokens 5 and left out (the longest has 20 "
        "tokens)\n"
    )


def test_with_fewer_rows_than_the_run_takes_it_says_how_often_they_are_used(
    job: Callable[..., Job], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = choose(job(said_twice(40)), 0, LIMITS, str, lambda row: (1,), 100)
    say_repeats("rows", chosen.amount, 100)

    assert len(chosen.rows) == 40
    assert capsys.readouterr().out == "the run repeats each of the rows 2.5 times: there are no more\n"


def test_a_set_without_rows_for_training_is_an_error(job: Callable[..., Job]) -> None:
    with pytest.raises(StageError, match="no training rows; add rows, or lower held_out"):
        choose(job([]), 0, LIMITS, str, lambda row: (1,), 1)


def test_a_kind_of_row_that_the_stage_cannot_use_is_refused(job: Callable[..., Job]) -> None:
    made = job(said_twice(4))

    assert kind_of(made, "text", "prompt_completion") == "prompt_completion"
    with pytest.raises(StageError, match="takes rows of kind preference or text; the rows of this set are prompt_co"):
        kind_of(made, "preference", "text")
