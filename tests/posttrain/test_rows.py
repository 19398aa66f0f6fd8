"""The choice and order of the rows of a run."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.core.job import Job, StageError, json_lines, open_job
from baton.tasks.posttrain.encode import RowRefused
from baton.tasks.posttrain.rows import in_order, kind_of, note_epochs, select
from baton.tasks.posttrain.spec import PostTrainSpec
from tests.posttrain.tiny import repeated_words, tiny_rows, write_job


class Text(str):
    """A row with one token per character."""

    @property
    def lengths(self) -> tuple[int, ...]:
        return (len(self),)


def text_of(row: dict[str, Any]) -> Text:
    return Text(row["completion"][:4])


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
    def make(rows: list[dict[str, Any]], kind: str = "prompt_completion", **more: Any) -> Job:
        made = tiny_rows(tmp_path / "rows", rows, kind, **more)
        return open_job(write_job(tmp_path / "job", "sft", {}, rows=made))

    return make


def test_no_more_rows_are_taken_than_the_run_needs(job: Callable[..., Job]) -> None:
    chosen = select(job(repeated_words(40)), 0, LIMITS, text_of, 12)

    assert len(chosen.rows) == 12 and chosen.counts() == {"rows": 12, "rows_too_long": 0}


def test_rows_that_are_too_long_are_skipped_and_counted(job: Callable[..., Job]) -> None:
    with_long = job([{"text": "x" * length} for length in range(1, 21)])

    chosen = select(with_long, 0, LIMITS, lambda row: Text(row["text"]), 16)

    assert chosen.counts() == {"rows": 15, "rows_too_long": 5}
    assert json_lines(with_long.notices) == [
        {
            "text": "5 of 20 rows are longer than max_prompt_tokens 10 and max_new_tokens 5 and left out (the longest "
            "has 20 tokens)"
        }
    ]


@pytest.mark.parametrize("drops", [True, False])
def test_rows_that_the_template_rejects_are_left_out_if_the_set_drops_faulty_rows(
    job: Callable[..., Job], drops: bool
) -> None:
    made = job([{"text": f"{number}"} for number in range(10)], drops_faulty=drops)

    def encode(row: dict[str, Any]) -> Text:
        if row["text"] in "37":
            raise RowRefused(f"no {row['text']}")
        return Text(row["text"])

    if not drops:
        with pytest.raises(RowRefused, match=r"no \d\nSet the rows' `faulty: drop`"):
            select(made, 0, LIMITS, encode, 16)
        return
    chosen = select(made, 0, LIMITS, encode, 16)
    assert sorted(chosen.rows) == list("01245689")
    (told,) = json_lines(made.notices)
    assert told["text"].startswith("2 rows are left out (faulty: drop): no ")


@pytest.mark.parametrize(
    ("steps", "batch_size", "notices"),
    [
        (5, 20, ["2.5 epochs over 40 rows: the set has no more"]),
        (2, 20, []),
        (6, 36, ["3.0 epochs over 40 rows: the set has no more; an epoch's last step has 4 instead of batch_size 36"]),
    ],
)
def test_more_than_one_epoch_is_a_notice(
    job: Callable[..., Job], steps: int, batch_size: int, notices: list[str]
) -> None:
    few = job(repeated_words(40))
    note_epochs(few, "40 rows", steps, batch_size, 40)

    assert [line["text"] for line in (json_lines(few.notices) if few.notices.exists() else [])] == notices


def test_a_set_without_rows_for_training_is_an_error(job: Callable[..., Job]) -> None:
    with pytest.raises(StageError, match="no training rows; add rows, or lower held_out"):
        select(job([]), 0, LIMITS, text_of, 1)


def test_a_kind_of_row_that_the_stage_cannot_use_is_refused(job: Callable[..., Job]) -> None:
    made = job(repeated_words(4))

    assert kind_of(made, "text", "prompt_completion") == "prompt_completion"
    with pytest.raises(StageError, match="needs rows of kind preference or text; the rows of this set are prompt_co"):
        kind_of(made, "preference", "text")
