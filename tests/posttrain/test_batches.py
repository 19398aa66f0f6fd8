"""The division of a step's rows over processes and micro batches."""

from itertools import chain, islice, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import SequentialSampler

from baton.tasks.posttrain.batches import RankBatches, WithBlanks, micro_batches
from baton.tasks.posttrain.spec import epochs


@given(st.integers(1, 8), st.integers(1, 5), st.integers(1, 60))
def test_every_row_is_computed_once_in_as_many_micro_batches_on_every_process(
    processes: int, micro_batch: int, count: int
) -> None:
    rows = list(range(100, 100 + count))
    parts = [list(micro_batches(rows, micro_batch, rank, processes)) for rank in range(processes)]

    assert len({len(part) for part in parts}) == 1
    computed = [row for part in parts for batch in part for row in batch if row >= 0]
    assert sorted(computed) == rows
    sizes = [len(batch) for part in parts for batch in part]
    assert max(sizes) <= micro_batch and min(sizes) >= 1 and max(sizes) - min(sizes) <= 1


def test_a_full_step_s_micro_batches_are_rows_that_follow_each_other() -> None:
    """The rows of a micro batch have similar lengths."""
    assert [list(micro_batches(range(8), 2, rank, 2)) for rank in (0, 1)] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 60))
def test_the_epochs_that_are_reported_are_those_of_the_rows_that_are_computed(
    steps: int, batch_size: int, rows: int
) -> None:
    batches = RankBatches(SequentialSampler(range(rows)), batch_size, batch_size, rank=0, processes=1)
    taken = sum(len(batch) for batch in islice(chain.from_iterable(repeat(batches)), steps))
    assert epochs(steps, batch_size, rows) == pytest.approx(taken / rows)


def test_a_process_without_a_row_computes_one_without_labels() -> None:
    assert [list(micro_batches([7], 4, rank, 2)) for rank in (0, 1)] == [[[7]], [[~7]]]

    rows = WithBlanks([{"input_ids": [1, 2], "labels": [1, 2]}], ignored=-100)
    assert rows[0] == {"input_ids": [1, 2], "labels": [1, 2]}
    assert rows[~0] == {"input_ids": [1, 2], "labels": [-100, -100], "blank": True}
