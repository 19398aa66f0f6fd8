"""The data that a step reads: order, data sets, masks and prefetching."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.tasks.core.job import StageError, open_job
from baton.tasks.core.manifest import MANIFEST, read_manifest
from baton.tasks.pretrain.batches import Batch, Samples, build_datasets, document_numbers, index_cache, micro_batches
from baton.tasks.pretrain.prefetch import Prefetch
from baton.tasks.pretrain.spec import BatchWarmup, PretrainSpec
from baton.tasks.pretrain.train_step import Training
from baton.tasks.pretrain.trainer import Trainer
from tests.pretrain.alone import alone
from tests.pretrain.order import BATCH, LAYOUTS, STEPS
from tests.pretrain.tiny import END, VOCABULARY, make_shards, metrics, pretrain_job, tiny_spec, write_shards
from tests.source import ROOT


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    with alone():
        yield


# -- the order ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_every_layout_reads_the_same_samples_at_each_step(tmp_path: Path) -> None:
    data = [make_shards(tmp_path / "data"), of_one_token(tmp_path / "more", 1, 30)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command = [*torchrun, "-m", "tests.pretrain.order", str(tmp_path), *map(str, data)]
    completed = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    found = json.loads((tmp_path / "order.json").read_text())
    dataset, _ = build_datasets(tiny_spec(steps=STEPS, global_batch=BATCH), data, VOCABULARY, tmp_path / "alone")
    for number, layout in enumerate(LAYOUTS):
        for step in range(STEPS):
            by_rank = {json.dumps(rank[step]) for rank in found[str(number)]}  # other ranks have copies
            sequences = [row for words in by_rank for batch in json.loads(words) for row in batch]
            assert len(by_rank) == layout.data
            expected = [dataset[index]["tokens"].tolist() for index in range(step * BATCH, (step + 1) * BATCH)]
            assert sorted(sequences) == sorted(expected)


def test_another_seed_is_another_order(tmp_path: Path) -> None:
    data = make_shards(tmp_path / "data")
    (one, _), (same, _), (other, _) = (
        build_datasets(tiny_spec(seed=seed), [data], VOCABULARY, tmp_path / "index") for seed in (1, 1, 2)
    )
    assert rows(one) == rows(same)
    assert rows(one) != rows(other)


def test_an_index_that_was_cut_short_is_made_anew(tmp_path: Path) -> None:
    """Megatron reads an existing index: one full of zeros, as after a power failure, would yield the first sample
    forever."""
    data = [make_shards(tmp_path / "data")]

    def sequences() -> list[list[int]]:
        with index_cache(tmp_path / "index") as index:
            return rows(build_datasets(tiny_spec(), data, VOCABULARY, index)[0])

    expected = sequences()
    for damaged in (*(tmp_path / "index").glob("*train-shuffle_index.npy"), tmp_path / "index" / MANIFEST):
        content = damaged.read_bytes()
        damaged.write_bytes(content[: len(content) // 2].ljust(len(content), b"\0"))
        assert sequences() == expected


def test_what_does_not_fill_a_micro_batch_is_not_learned_from(tmp_path: Path) -> None:
    dataset, _ = build_datasets(tiny_spec(), [make_shards(tmp_path / "data")], VOCABULARY, tmp_path / "index")
    full, rest = micro_batches(dataset, 0, 3, micro_batch=2)
    assert full.loss_mask.sum(dim=1).tolist() == [32, 32]
    assert rest.loss_mask.sum(dim=1).tolist() == [32, 0]


def rows(dataset: Samples, count: int = 24) -> list[list[int]]:
    return [dataset[index]["tokens"].tolist() for index in range(count)]


# -- little data ---------------------------------------------------------------------------------------


def of_lengths(folder: Path, train: list[int], held_out: list[int]) -> Path:
    return write_shards(folder, [np.full(length, 2) for length in train], [np.full(length, 2) for length in held_out])


def test_a_data_set_smaller_than_one_sequence_is_read_again_for_its_share(tmp_path: Path) -> None:
    data = [of_one_token(tmp_path / "much", 1, 20), of_lengths(tmp_path / "little", [7], [])]
    dataset, _ = build_datasets(tiny_spec(data_weights=[0.5, 0.5]), data, VOCABULARY, tmp_path / "index")
    assert [row[0] for row in rows(dataset)].count(2) == 12


def test_a_data_set_without_training_text_is_passed_over(tmp_path: Path) -> None:
    data = [of_one_token(tmp_path / "much", 1, 20), of_lengths(tmp_path / "none", [], [50])]
    dataset, _ = build_datasets(tiny_spec(), data, VOCABULARY, tmp_path / "index")
    assert {row[0] for row in rows(dataset)} == {1}


@pytest.mark.parametrize(
    ("train", "held_out", "weights", "message"),
    [
        ([], [50], [1.0], "there is no text to train on: .*none have 0 training tokens"),
        ([100], [], [1.0], "there is no text to validate on: .*none has 0 held-out tokens; hold out more of it"),
        ([], [50], [0.3, 0.7], r"data_weights \[0.3, 0.7\]: .*none has 0 training tokens; set its weight to 0"),
    ],
)
def test_data_sets_with_nothing_in_them_are_named(
    tmp_path: Path, train: list[int], held_out: list[int], weights: list[float], message: str
) -> None:
    data = [of_lengths(tmp_path / "none", train, held_out), of_one_token(tmp_path / "much", 1, 20)]
    spec = tiny_spec(data_weights=weights)
    with pytest.raises(StageError, match=message):
        build_datasets(spec, data[: len(weights)], VOCABULARY, tmp_path / "index")


# -- blends ------------------------------------------------------------------------------------------


def of_one_token(folder: Path, token: int, documents: int, tokenizer_digest: str = "0" * 64) -> Path:
    """Write a data set that can be identified by its only token."""
    row = np.full(100, token)
    return write_shards(folder, [row] * documents, [row] * 4, tokenizer_digest)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Data sets of 2,000, 1,000 and 1,000 tokens."""
    folder = tmp_path_factory.mktemp("three")
    return [of_one_token(folder / str(token), token, count) for token, count in ((1, 20), (2, 10), (3, 10))]


def origins(spec: PretrainSpec, data: list[Path], cache: Path) -> list[int]:
    """Return the data set of each sample of the run."""
    dataset, _ = build_datasets(spec, data, VOCABULARY, cache)
    return [int(dataset[index]["tokens"][0]) for index in range(spec.samples_at(spec.steps))]


@pytest.mark.parametrize(
    ("weights", "shares"),
    [(None, (0.5, 0.25, 0.25)), ([1, 1, 2], (0.25, 0.25, 0.5)), ([0.9, 0.1, 0], (0.9, 0.1, 0.0))],
    ids=["by size", "by weight", "one left out"],
)
def test_a_blend_has_its_shares_at_any_point(
    three: list[Path], tmp_path: Path, weights: list[float] | None, shares: tuple[float, ...]
) -> None:
    found = origins(tiny_spec(data_weights=weights, steps=60), three, tmp_path)  # 240 samples in several epochs
    for end in (40, 120, 240):
        counts = [found[:end].count(token) for token in (1, 2, 3)]
        assert counts == pytest.approx([end * share for share in shares], abs=2)


@settings(max_examples=20, deadline=None)
@given(weights=st.lists(st.floats(1e-3, 1), min_size=3, max_size=3), steps=st.integers(1, 12))
def test_a_blend_of_few_samples_can_be_read_to_its_end(
    three: list[Path], tmp_path_factory: pytest.TempPathFactory, weights: list[float], steps: int
) -> None:
    spec = tiny_spec(data_weights=weights, steps=steps, global_batch=1)
    assert set(origins(spec, three, tmp_path_factory.mktemp("index"))) <= {1, 2, 3}


def test_no_data_set_is_read_twice_before_all_of_it_was_read_once(tmp_path: Path) -> None:
    """A data set is repeated as often as its share requires."""
    data = [make_shards(tmp_path / "rising"), of_one_token(tmp_path / "ones", 1, 40)]
    spec = tiny_spec(data_weights=[0.5, 0.5], steps=60)  # 120 of the 124 samples of the first set
    dataset, _ = build_datasets(spec, data, VOCABULARY, tmp_path / "index")
    first = [row for row in rows(dataset, spec.samples_at(60)) if set(row) != {1}]
    assert len({tuple(row) for row in first}) == len(first) == 120


def test_validation_is_on_the_first_data_set_alone(three: list[Path], tmp_path: Path) -> None:
    _, held_out = build_datasets(tiny_spec(data_weights=[0, 1, 1]), three, VOCABULARY, tmp_path)
    assert {int(held_out[index]["tokens"][0]) for index in range(len(held_out))} == {1}


def test_no_held_out_sequence_is_read_twice(tmp_path: Path) -> None:
    data = [make_shards(tmp_path / "data")]  # 800 held-out tokens: 24 sequences of 32, and the label of the last one
    _, some = build_datasets(tiny_spec(), data, VOCABULARY, tmp_path / "index")
    _, all_of_it = build_datasets(tiny_spec(validation_sequences=24), data, VOCABULARY, tmp_path / "index")
    _, held_out = build_datasets(tiny_spec(validation_sequences=100), data, VOCABULARY, tmp_path / "index")
    assert len(held_out) == len({tuple(row) for row in rows(held_out)}) == 24
    assert rows(held_out) == rows(all_of_it) and rows(held_out, 4) == rows(some, 4)


@pytest.mark.parametrize("tokens", [7, 32, 33])
def test_held_out_text_of_one_sequence_or_less_is_one_sequence(tmp_path: Path, tokens: int) -> None:
    data = [of_lengths(tmp_path / "data", [200], [tokens])]
    _, held_out = build_datasets(tiny_spec(validation_sequences=100), data, VOCABULARY, tmp_path / "index")
    assert len(held_out) == 1


def test_data_sets_of_different_tokenizers_are_refused(three: list[Path], tmp_path: Path) -> None:
    foreign = of_one_token(tmp_path / "foreign", 4, 10, tokenizer_digest="f" * 64)
    with pytest.raises(StageError, match=r"different tokenizers: .*000000000000, .* by ffffffffffff"):
        build_datasets(tiny_spec(), [*three, foreign], VOCABULARY, tmp_path)


def test_weights_for_other_data_sets_are_refused(three: list[Path], tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"data_weights \[0.5, 0.5\]: there are 3 data sets"):
        build_datasets(tiny_spec(data_weights=[0.5, 0.5]), three, VOCABULARY, tmp_path)


# -- document boundaries -------------------------------------------------------------------------------


def test_the_end_of_text_is_its_documents_last_token() -> None:
    tokens = torch.tensor([[5, 6, END, 7, END, END, 8], [END, 1, 2, 3, 4, 5, END]])
    assert document_numbers(tokens, END).tolist() == [[0, 0, 0, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1]]


def test_the_mask_hides_all_but_the_own_document() -> None:
    batch = batch_of(torch.tensor([[5, END, 7, 8]]))
    hidden = batch.attention_mask
    assert hidden is not None
    own, other = False, True
    assert hidden.tolist() == [
        [[[own, own, other, other], [own, own, other, other], [other, other, own, own], [other, other, own, own]]]
    ]


def batch_of(tokens: torch.Tensor, masked: bool = True) -> Batch:
    return Batch(
        tokens=tokens,
        labels=tokens.roll(-1, dims=1),
        loss_mask=torch.ones(tokens.shape),
        position_ids=torch.arange(tokens.size(1)).expand_as(tokens),
        documents=document_numbers(tokens, END) if masked else None,
    )


@pytest.fixture(scope="module")
def training() -> Training:
    return Training(tiny_spec(precision="fp32"), VOCABULARY)


def losses(training: Training, batch: Batch) -> torch.Tensor:
    """Return the loss of each token."""
    with torch.no_grad():
        (chunk,) = training.chunks
        found: torch.Tensor = chunk(batch.tokens, batch.position_ids, batch.attention_mask, labels=batch.labels)[0]
    return found


FIRST = torch.tensor([11, 12, 13, 14, 15, 16, 17, 18, 19, END])
SECOND = torch.tensor([50, 52, 51, 53, 52, 54, 53, 55, 54, 56, 55, END])


@pytest.mark.parametrize("masked", [True, False])
def test_only_without_the_mask_does_an_earlier_document_matter(training: Training, masked: bool) -> None:
    before = torch.cat([FIRST, SECOND])[None]
    changed = before.clone()
    changed[0, 3] = 99
    one, other = (losses(training, batch_of(tokens, masked)) for tokens in (before, changed))
    in_second = slice(len(FIRST), len(FIRST) + len(SECOND) - 1)  # the last label belongs to the next document
    assert not torch.equal(one[: len(FIRST)], other[: len(FIRST)])
    assert torch.equal(one[in_second], other[in_second]) == masked


def test_with_the_mask_a_document_is_read_as_if_it_were_alone(training: Training) -> None:
    """Position ids are not reset, since rotary embeddings depend only on distances."""
    together = losses(training, batch_of(torch.cat([FIRST, SECOND])[None]))[len(FIRST) : -1]
    alone = losses(training, batch_of(SECOND[None]))[:-1]
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


# -- the size of a batch ---------------------------------------------------------------------------------


@st.composite
def warmed_up(draw: st.DrawFn) -> PretrainSpec:
    start, increment = draw(st.integers(1, 64)), draw(st.integers(1, 64))
    steps = draw(st.integers(1, 200))
    return PretrainSpec(
        global_batch=start + increment * draw(st.integers(0, 20)),
        batch_warmup=BatchWarmup(start=start, increment=increment, steps=steps),
        steps=steps + draw(st.integers(0, 50)),
    )


@given(warmed_up())
def test_a_batch_grows_by_its_increments_from_start_to_global_batch(spec: PretrainSpec) -> None:
    warmup = spec.batch_warmup
    assert warmup is not None
    sizes = [spec.batch_at(step) for step in range(spec.steps + 1)]
    assert sizes[0] == (warmup.start if warmup.steps else spec.global_batch)
    assert sizes == sorted(sizes)
    assert all((size - warmup.start) % warmup.increment == 0 for size in sizes)
    assert set(sizes[warmup.steps :]) == {spec.global_batch}


@given(warmed_up(), st.integers(0, 300))
def test_the_position_is_the_sum_of_the_batches(spec: PretrainSpec, step: int) -> None:
    assert spec.samples_at(step) == sum(spec.batch_at(earlier) for earlier in range(step))


# -- prefetching -----------------------------------------------------------------------------------------


class Shelf:
    """A slow data source that records which items were read."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.read_spans = seconds, list[range]()

    def read(self, span: range) -> list[int]:
        time.sleep(self.seconds)
        self.read_spans.append(span)
        if span.start == 13:
            raise OSError("a disk that is gone")
        return list(span)


def test_what_follows_is_read_while_the_step_trains() -> None:
    shelf = Shelf(seconds=0.2)
    with Prefetch(shelf.read) as prefetch:
        prefetch.get(range(4), range(4, 8))
        time.sleep(0.4)  # the step
        started = time.perf_counter()
        assert prefetch.get(range(4, 8), None) == [4, 5, 6, 7]
        assert time.perf_counter() - started < 0.1
    assert shelf.read_spans == [range(4), range(4, 8)]


@pytest.mark.parametrize("elsewhere", [range(20, 24), range(4, 10), range(5, 8)])
def test_a_run_that_turns_elsewhere_gets_what_it_asks_for(elsewhere: range) -> None:
    with Prefetch(Shelf().read) as prefetch:
        prefetch.get(range(4), range(4, 8))
        assert prefetch.get(elsewhere, range(30, 34)) == list(elsewhere)
        assert prefetch.get(range(30, 34), None) == [30, 31, 32, 33]


def test_what_fails_while_reading_ahead_fails_in_its_step() -> None:
    with Prefetch(Shelf().read) as prefetch:
        assert prefetch.get(range(9, 13), range(13, 17)) == [9, 10, 11, 12]
        with pytest.raises(OSError, match="a disk that is gone"):
            prefetch.get(range(13, 17), None)


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    with Prefetch(Shelf(seconds=0.1).read) as prefetch:
        prefetch.get(range(4), range(4, 8))
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_waiting_ends_what_is_being_read() -> None:
    shelf = Shelf(seconds=0.1)
    with Prefetch(shelf.read) as prefetch:
        prefetch.get(range(4), range(4, 8))
        prefetch.wait()
        assert shelf.read_spans == [range(4), range(4, 8)]


# -- a complete run -----------------------------------------------------------------------------------------


def test_a_run_with_a_blend_a_mask_and_growing_batches(tmp_path: Path) -> None:
    spec = tiny_spec(
        steps=24,
        sequence_length=64,
        global_batch=16,
        batch_warmup=BatchWarmup(start=4, increment=4, steps=8),
        data_weights=[3, 1],
        mask_documents=True,
    )
    data = [make_shards(tmp_path / "one"), make_shards(tmp_path / "two")]
    job = pretrain_job(tmp_path / "job", data[0], spec, data[1])
    trainer = Trainer(open_job(job), spec)
    trainer.hand_over(trainer.run())
    facts = read_manifest(job / "output").facts
    assert facts["tokens_seen"] == spec.tokens() == (3 * 4 + 3 * 8 + 2 * 12 + 16 * 16) * 64
    taken = metrics(job)
    assert list(taken) == list(range(1, 25))
    assert taken[24]["loss"] < taken[1]["loss"] - 0.5
    assert share_of_waiting(job) < 0.01


def share_of_waiting(job: Path) -> float:
    """Return the share of time that steps wait for data, without the first step, for which nothing could be
    prefetched."""
    _, *steps = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    total = sum(step[phase] for step in steps for phase in ("data_s", "forward_backward_s", "optimizer_s"))
    return float(sum(step["data_s"] for step in steps) / total)
