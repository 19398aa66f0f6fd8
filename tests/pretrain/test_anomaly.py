"""Anomalous steps: which steps count, which entries are logged, and the effect of each policy.

The bad batches are real: one has random tokens after constant ones; in another, AdamW has turned a token's embedding
into NaN by computing 0 / (0 + eps) with an eps too small for fp32.
"""

import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.core.job import StageError, json_lines, open_job
from baton.tasks.core.manifest import read_manifest
from baton.tasks.pretrain.anomaly import FEWEST_LOSSES, Anomaly, AnomalyLog, Watch, identity
from baton.tasks.pretrain.batches import build_datasets
from baton.tasks.pretrain.optimizer_spec import OptimizerSpec
from baton.tasks.pretrain.spec import AnomalySpec, CheckpointPolicy, PretrainSpec
from baton.tasks.pretrain.trainer import Trainer
from tests.pretrain.alone import alone
from tests.pretrain.ranks import engine
from tests.pretrain.tiny import (
    MODEL,
    VOCABULARY,
    make_shards,
    metrics,
    pretrain_job,
    tiny_spec,
    write_shards,
)

# -- the definition of an anomaly --------------------------------------------------------------------


def watch(**spec: Any) -> Watch:
    return Watch(AnomalySpec(**spec))


@pytest.mark.parametrize(("loss", "grad_norm"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.nan), (2.0, math.inf)])
def test_nan_and_inf_are_found_at_any_step(loss: float, grad_norm: float) -> None:
    found = watch().judge(loss, grad_norm, [])
    assert found is not None
    assert found.kind == "nan"
    assert (str(loss) in found.why) and (str(grad_norm) in found.why)


@given(
    losses=st.lists(st.floats(0, 20), min_size=FEWEST_LOSSES, max_size=64),
    loss=st.floats(0, 40),
    deviations=st.floats(0.1, 20),
)
def test_a_spike_is_so_many_deviations_above_the_mean(losses: list[float], loss: float, deviations: float) -> None:
    bound = statistics.fmean(losses) + deviations * statistics.stdev(losses)
    found = watch(spike_deviations=deviations).judge(loss, 1.0, losses)
    assert (found is not None) == (loss > bound)


def test_too_few_losses_tell_nothing() -> None:
    assert watch().judge(100.0, 1.0, [1.0] * (FEWEST_LOSSES - 1)) is None
    assert watch().judge(100.0, 1.0, [1.0] * FEWEST_LOSSES) is not None


def test_only_the_last_losses_are_compared_with() -> None:
    small = watch(window=8)
    losses: list[float] = []
    for loss in range(20):
        losses = small.remember(losses, loss)
    assert losses == list(range(12, 20))


# -- the log ------------------------------------------------------------------------------

SPIKE = Anomaly("spike", "loss 9", 9.0, 1.0)


class Four:
    """A data set of four samples, each from a separate document."""

    dataset_path = "four"
    shuffle_index = np.arange(4)
    sample_index = np.array([[0, 0], [1, 0], [2, 0], [3, 0], [4, 0]])
    document_index = np.arange(5)

    def __len__(self) -> int:
        return 4


def add(log: AnomalyLog, first: int, step: int = 1) -> str:
    return log.add(step, SPIKE, range(first, first + 2), Four())


def test_an_entry_tells_the_step_the_reason_and_the_batch(tmp_path: Path) -> None:
    AnomalyLog(tmp_path, watch(on_spike="skip"), writer=True).add(7, SPIKE, range(2, 4), Four())
    assert json.loads((tmp_path / "anomalies.jsonl").read_text()) == {
        "step": 7,
        "kind": "spike",
        "why": "loss 9",
        "loss": 9.0,
        "grad_norm": 1.0,
        "reaction": "skip",
        "first": 2,
        "count": 2,
        "samples": [{"data": "four", "documents": [2, 3]}, {"data": "four", "documents": [3, 4]}],
    }


def test_nan_is_written_as_json_can_say_it(tmp_path: Path) -> None:
    AnomalyLog(tmp_path, watch(), writer=True).add(1, Anomaly("nan", "", math.nan, math.inf), range(1), Four())
    (entry,) = json_lines(tmp_path / "anomalies.jsonl")
    assert (entry["loss"], entry["grad_norm"]) == ("nan", "inf")


def test_a_step_taken_again_after_a_restart_is_the_same_entry(tmp_path: Path) -> None:
    for _ in range(3):
        log = AnomalyLog(tmp_path, watch(on_spike="skip", limit=2), writer=True)
        assert [add(log, first) for first in (0, 2)] == ["skip", "skip"]
    assert len(json_lines(tmp_path / "anomalies.jsonl")) == 2


def test_the_limit_is_counted_over_restarts(tmp_path: Path) -> None:
    assert add(AnomalyLog(tmp_path, watch(on_spike="skip", limit=2), writer=True), 0) == "skip"
    assert add(AnomalyLog(tmp_path, watch(on_spike="roll_back", limit=2), writer=True), 2) == "roll_back"
    for _ in range(2):
        log = AnomalyLog(tmp_path, watch(on_spike="skip", limit=2), writer=True)
        assert [add(log, first) for first in (0, 4)] == ["skip", "stop"]
    assert len(json_lines(log.path)) == 3
    assert "2 batches were already skipped or rolled back" in log.stop_message(3, SPIKE, range(4, 6))


def test_what_is_only_logged_does_not_count(tmp_path: Path) -> None:
    log = AnomalyLog(tmp_path, watch(on_spike="continue", limit=1), writer=True)
    assert [add(log, first) for first in (0, 2, 4)] == ["continue"] * 3
    assert len(json_lines(log.path)) == 3


def test_half_a_line_of_a_killed_writer_is_dropped(tmp_path: Path) -> None:
    log = AnomalyLog(tmp_path, watch(on_spike="skip"), writer=True)
    add(log, 0)
    with log.path.open("a") as stream:
        stream.write('{"step": 2, "samples": [{"documents": [1]}')
    add(AnomalyLog(tmp_path, watch(on_spike="skip"), writer=True), 2)
    assert [json.loads(line)["first"] for line in log.path.read_text().splitlines()] == [0, 2]


# -- the documents of a batch -----------------------------------------------------------------------------


def test_a_sample_is_of_the_documents_that_megatron_reads_for_it(tmp_path: Path) -> None:
    with alone():
        dataset, _ = build_datasets(tiny_spec(), [make_shards(tmp_path / "data")], VOCABULARY, tmp_path / "index")
    for index, origin in enumerate(identity(dataset, range(40))):
        assert origin["documents"] == dataset._query_document_sample_shuffle_indices(index)[1].tolist()  # type: ignore[attr-defined]


def test_of_a_blend_the_data_set_is_reported_too(tmp_path: Path) -> None:
    data = [make_shards(tmp_path / name) for name in ("one", "other")]
    with alone():
        dataset, _ = build_datasets(tiny_spec(data_weights=[1, 3]), data, VOCABULARY, tmp_path / "index")
    for index, origin in enumerate(identity(dataset, range(32))):
        assert origin["data"] == str(data[int(dataset[index]["dataset_id"])] / "train")


# -- real bad batches ------------------------------------------------------------------------------------

LENGTH, TOKENS = 32, 16  # documents are as long as a sequence and use few tokens, so every step sees them all
RARE = 200  # a token that no other document contains


def circles(count: int, seed: int) -> list[np.ndarray]:
    """Return 1, 2, … 16, 1, 2 … from any start, a sequence that is learned quickly."""
    starts = np.random.default_rng(seed).integers(0, TOKENS, size=count)
    return [(start + np.arange(LENGTH)) % TOKENS + 1 for start in starts]


def poisoned(folder: Path, spec: PretrainSpec, bad_steps: dict[int, str]) -> Path:
    """Write shards in which the batch of each of these steps has a bad document. The place of a document depends
    only on lengths and the seed."""
    clean, held_out = circles(200, seed=0), circles(8, seed=1)
    with alone():
        shards = write_shards(folder / "clean", clean, held_out)
        dataset, _ = build_datasets(spec, [shards], VOCABULARY, folder / "index")
    random = np.random.default_rng(2)
    for step, kind in bad_steps.items():
        for sample in identity(dataset, range(spec.samples_at(step - 1), spec.samples_at(step))):
            document = clean[sample["documents"][0]]  # the sample is the document and the first token of the next one
            if kind == "random":
                document[:] = random.integers(1, TOKENS + 1, size=LENGTH)
            else:
                document[LENGTH // 2] = RARE
    return write_shards(folder / "poisoned", clean, held_out)


def run(job: Path) -> Path:
    """Run the engine in this process."""
    opened = open_job(job)
    spec = opened.spec(PretrainSpec)
    with alone(spec.seed):
        trainer = Trainer(opened, spec)
        trainer.resume()
        trainer.hand_over(trainer.run())
    return job


STEPS, BAD = 24, 19


def spiky(**anomalies: Any) -> PretrainSpec:
    return tiny_spec(
        steps=STEPS,
        anomalies=AnomalySpec(window=8, spike_deviations=3, **anomalies),
        checkpoints=CheckpointPolicy(every=5),
        validate_every=STEPS,
    )


@pytest.fixture(scope="module")
def spike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return poisoned(tmp_path_factory.mktemp("spike"), spiky(), {BAD: "random"})


@pytest.fixture(scope="module")
def unnoticed(spike: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that only logs its spike."""
    return run(pretrain_job(tmp_path_factory.mktemp("jobs") / "unnoticed", spike, spiky()))


def test_a_loss_that_jumps_is_logged_and_the_run_goes_on(unnoticed: Path) -> None:
    (entry,) = json_lines(unnoticed / "anomalies.jsonl")
    assert (entry["step"], entry["kind"], entry["reaction"]) == (BAD, "spike", "continue")
    assert (entry["first"], entry["count"]) == ((BAD - 1) * 4, 4)
    assert len(metrics(unnoticed)) == STEPS


def test_the_book_is_handed_over_with_the_checkpoint(unnoticed: Path) -> None:
    assert json_lines(unnoticed / "output" / "record" / "anomalies.jsonl") == json_lines(unnoticed / "anomalies.jsonl")


def test_a_skipped_batch_is_not_learned_from(spike: Path, unnoticed: Path, tmp_path: Path) -> None:
    job = run(pretrain_job(tmp_path / "job", spike, spiky(on_spike="skip")))
    (entry,) = json_lines(job / "anomalies.jsonl")
    assert (entry["step"], entry["reaction"]) == (BAD, "skip")
    skipped, learned = metrics(job), metrics(unnoticed)
    assert list(skipped) == list(range(1, STEPS + 1))
    assert [skipped[step] == learned[step] for step in skipped] == [step <= BAD for step in skipped]
    assert [skipped[step]["lr"] for step in skipped] == [learned[step]["lr"] for step in skipped]
    assert read_manifest(job / "output").facts["step"] == STEPS


def test_a_run_rolls_back_and_goes_on_behind_the_batch(spike: Path, unnoticed: Path, tmp_path: Path) -> None:
    job = run(pretrain_job(tmp_path / "job", spike, spiky(on_spike="roll_back")))
    (entry,) = json_lines(job / "anomalies.jsonl")
    assert (entry["step"], entry["reaction"]) == (BAD, "roll_back")
    rolled, learned = metrics(job), metrics(unnoticed)
    assert list(rolled) == list(range(1, STEPS + 1))
    back_at = 15  # the step of the newest checkpoint
    assert [rolled[step] == learned[step] for step in rolled] == [step <= back_at for step in rolled]
    # step 16 now uses the batch after the bad one, which is the batch of step 20 if none is skipped
    assert max(rolled[step]["loss"] for step in range(back_at + 1, STEPS)) < learned[back_at]["loss"]


def test_before_the_first_checkpoint_a_run_rolls_back_to_its_beginning(tmp_path: Path) -> None:
    spec = spiky(on_spike="roll_back").model_copy(update={"checkpoints": CheckpointPolicy(every=STEPS)})
    job = run(pretrain_job(tmp_path / "job", poisoned(tmp_path, spec, {BAD: "random"}), spec))
    (entry,) = json_lines(job / "anomalies.jsonl")
    assert (entry["step"], entry["reaction"]) == (BAD, "roll_back")
    assert list(metrics(job)) == list(range(1, STEPS + 1))


def test_a_run_stops_and_says_where_and_what_to_do(spike: Path, tmp_path: Path) -> None:
    job = pretrain_job(tmp_path / "job", spike, spiky(on_spike="stop"))
    with pytest.raises(StageError) as caught:
        run(job)
    words = str(caught.value)
    assert words.startswith(f"step {BAD}: loss 3.")
    for message in (
        "samples 72 to 75",
        str(job / "anomalies.jsonl"),
        "optimizer.lr",
        "anomalies.on_spike to skip or roll",
    ):
        assert message in words
    assert max(metrics(job)) == BAD - 1


# -- NaN -------------------------------------------------------------------------------------------------


def underflowing(**changes: Any) -> PretrainSpec:
    """Return a spec for which the embeddings of tokens without a gradient, and nothing else, become 0 / 0 in the
    first step."""
    return tiny_spec(
        precision="fp32",
        model=MODEL.model_copy(update={"tied_embeddings": False}),
        optimizer=OptimizerSpec(lr=1e-2, min_lr=1e-3, warmup_steps=2, eps=1e-60),
        **changes,
    )


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return poisoned(tmp_path_factory.mktemp("rare"), underflowing(), {4: "rare", 6: "rare"})


def test_nan_stops_the_run_by_default(rare: Path, tmp_path: Path) -> None:
    job = pretrain_job(tmp_path / "job", rare, underflowing())
    with pytest.raises(StageError, match=r"step 4: loss nan, gradient norm nan.*anomalies.on_nan to skip or roll_back"):
        run(job)
    assert max(metrics(job)) == 3


@pytest.mark.parametrize("reaction", ["skip", "roll_back"])
def test_a_run_goes_on_without_the_batches_of_nan(rare: Path, tmp_path: Path, reaction: Any) -> None:
    job = run(pretrain_job(tmp_path / "job", rare, underflowing(anomalies=AnomalySpec(on_nan=reaction))))
    assert [entry["reaction"] for entry in json_lines(job / "anomalies.jsonl")] == [reaction] * 2
    assert read_manifest(job / "output").facts["step"] == 8
    taken = metrics(job)
    assert list(taken) == list(range(1, 9))
    assert [step for step in taken if "loss" not in taken[step]] == ([4, 6] if reaction == "skip" else [])
    assert taken[8]["loss"] < taken[1]["loss"]


def test_too_many_bad_batches_stop_the_run(rare: Path, tmp_path: Path) -> None:
    job = pretrain_job(tmp_path / "job", rare, underflowing(anomalies=AnomalySpec(on_nan="skip", limit=1)))
    with pytest.raises(StageError, match=r"step 6: .* 1 batches were already skipped or rolled back \(a"):
        run(job)
    assert [entry["reaction"] for entry in json_lines(job / "anomalies.jsonl")] == ["skip", "stop"]


# -- kill -9 -----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("reaction", ["skip", "roll_back"])
def test_a_run_killed_after_a_bad_batch_continues_bit_for_bit(spike: Path, tmp_path: Path, reaction: Any) -> None:
    undisturbed, killed = (pretrain_job(tmp_path / name, spike, spiky(on_spike=reaction)) for name in ("one", "other"))
    run(undisturbed)
    ranks = engine(killed)
    wait_for(killed / "anomalies.jsonl")  # the next checkpoint is some steps away
    ranks.kill()
    assert max(metrics(killed)) < STEPS
    run(killed)
    assert metrics(killed) == metrics(undisturbed)
    assert json_lines(killed / "anomalies.jsonl") == json_lines(undisturbed / "anomalies.jsonl")
    assert read_manifest(killed / "output").digest == read_manifest(undisturbed / "output").digest


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)
