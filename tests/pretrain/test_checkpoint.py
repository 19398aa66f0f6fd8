"""The contents of checkpoints, the checkpoints that are kept, and the one from which training resumes."""

import os
import resource
from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError, read_manifest, verify
from baton.tasks.pretrain.background import ThreadStrategy
from baton.tasks.pretrain.batches import build_datasets, micro_batches
from baton.tasks.pretrain.checkpoint import Checkpoints, TrainingState, superfluous
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.optimizer_state import boxes, regular, shares, updates
from baton.tasks.pretrain.spec import CheckpointPolicy
from baton.tasks.pretrain.train_step import Training
from tests.pretrain.alone import alone
from tests.pretrain.tiny import VOCABULARY, make_shards, tiny_spec

# isort: split
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory


class Tiny:
    """A training run in this process, with its checkpoints."""

    def __init__(
        self,
        folder: Path,
        precision: str = "bf16",
        distributed_optimizer: bool = False,
        clip_grad: float = 1.0,
        **policy: int | bool,
    ):
        layout = Layout(micro_batch=2, distributed_optimizer=distributed_optimizer)
        optimizer = tiny_spec().optimizer.model_copy(update={"clip_grad": clip_grad})
        policies = CheckpointPolicy.model_validate(policy)
        self.spec = tiny_spec(precision=precision, layout=layout, checkpoints=policies, optimizer=optimizer)
        data = folder / "shards"
        if not data.exists():
            make_shards(data)
        self.dataset, _ = build_datasets(self.spec, [data], VOCABULARY, folder / "index")
        self.training = Training(self.spec, VOCABULARY)
        self.state = TrainingState(self.training.chunks, self.training.optimizer, self.training.scheduler)
        self.folder = folder / "checkpoints"
        self.checkpoints = Checkpoints(self.folder, self.spec.checkpoints)

    def step(self) -> float:
        """Train one step, and return its loss."""
        state, training = self.state, self.training
        loss = training.gradients(micro_batches(self.dataset, state.samples, 4, 2))
        training.update(training.gradient_norm())
        training.scheduler.step(increment=1)
        state.step += 1
        state.samples += 4
        state.losses = [*state.losses, loss]
        return loss

    def save(self) -> Path:
        self.checkpoints.save(self.state)
        self.checkpoints.finish()
        return self.checkpoints.complete()[-1]

    def weights(self) -> list[torch.Tensor]:
        return [weight.detach().clone() for chunk in self.training.chunks for weight in chunk.parameters()]


@pytest.fixture(autouse=True)
def one_process() -> Iterator[None]:
    with alone():
        yield


# -- contents ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("saved_with", [False, True])
@pytest.mark.parametrize("loaded_with", [False, True])
def test_it_continues_bit_for_bit_with_and_without_the_distributed_optimizer(
    precision: str, saved_with: bool, loaded_with: bool, tmp_path: Path
) -> None:
    # The distributed optimizer sums the gradient norm in another order. Where the norm clips, this changes the last bit
    # of a weight, so a change from one optimizer to the other is exact only while nothing is clipped.
    clip_grad = 1.0 if saved_with == loaded_with else 1e6
    run = Tiny(tmp_path, precision, saved_with, clip_grad)
    for _ in range(3):
        run.step()
    run.save()
    undisturbed = [run.step() for _ in range(3)]

    again = Tiny(tmp_path, precision, loaded_with, clip_grad)
    again.checkpoints.resume(again.state)
    assert (again.state.step, again.state.samples, len(again.state.losses)) == (3, 12, 3)
    assert [again.step() for _ in range(3)] == undisturbed
    assert all(map(torch.equal, again.weights(), run.weights()))


def test_each_parameter_counts_its_updates_for_itself(tmp_path: Path) -> None:
    """AdamW increments the count in place. If the parameters shared one tensor, it would increase too often."""
    run = Tiny(tmp_path, distributed_optimizer=True)
    run.step()
    run.save()
    again = Tiny(tmp_path, distributed_optimizer=True)
    again.checkpoints.resume(again.state)
    again.step()
    counts = [share.adamw.state[share.main]["step"] for share in shares(again.training.optimizer)]
    assert {float(count) for count in counts} == {2.0}
    assert len({id(count) for count in counts}) == len(counts) > 1


def test_megatrons_own_load_still_shares_one_count(tmp_path: Path) -> None:
    """This is why tasks/pretrain/optimizer_state.py exists. If this fails, check whether Megatron's own load
    suffices."""
    run = Tiny(tmp_path, distributed_optimizer=True)
    run.step()
    run.training.optimizer.load_state_dict(run.training.optimizer.state_dict())
    assert len({id(share.adamw.state[share.main]["step"]) for share in shares(run.training.optimizer)}) == 1


def test_the_random_states_are_in_it(tmp_path: Path) -> None:
    run = Tiny(tmp_path)
    torch.rand(3)
    run.save()
    drawn = torch.rand(3)
    Tiny(tmp_path).checkpoints.resume(run.state)
    assert torch.equal(torch.rand(3), drawn)


def test_one_from_before_the_first_step_is_a_checkpoint_too(tmp_path: Path) -> None:
    run = Tiny(tmp_path)
    run.save()
    undisturbed = [run.step() for _ in range(2)]
    run.checkpoints.resume(run.state)
    assert (run.state.step, run.state.losses, updates(run.training.optimizer)) == (0, [], 0)
    assert [run.step() for _ in range(2)] == undisturbed


def test_what_is_trained_after_a_save_began_is_not_in_it(tmp_path: Path) -> None:
    """The thread may write at any time, here after all weights and moments were overwritten."""
    run = Tiny(tmp_path, "fp32")
    run.step()
    weights = run.weights()
    request = dist_checkpointing.save(
        run.state.sharded(with_rng=True), str(_made(tmp_path / "late")), ThreadStrategy(), async_sharded_save=True
    )
    with torch.no_grad():
        for share in shares(run.training.optimizer):
            for tensor in (share.weight, *share.tensors().values()):
                tensor.fill_(float("nan"))
    request.async_fn()
    for finalize in request.finalize_fns:
        finalize()
    dist_checkpointing.load(run.state.sharded(with_rng=True), str(tmp_path / "late"))
    assert all(map(torch.equal, run.weights(), weights))
    moments = [tensor for share in shares(run.training.optimizer) for tensor in share.tensors().values()]
    assert all(tensor.isfinite().all() for tensor in moments)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@st.composite
def ranges(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    start = draw(st.integers(0, prod(shape)))
    return shape, start, draw(st.integers(start, prod(shape)))


@given(ranges())
def test_boxes_hold_a_flat_range_and_nothing_else(example: tuple[tuple[int, ...], int, int]) -> None:
    shape, start, stop = example
    whole = np.arange(prod(shape)).reshape(shape)
    found = list(boxes(start, stop, shape))
    parts = [whole[tuple(map(slice, offset, np.add(offset, size)))].ravel() for offset, size in found]
    assert [element for part in parts for element in part] == list(range(start, stop))
    assert len(found) <= max(1, 2 * len(shape) - 1)


# -- kept checkpoints ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "gone"),
    [
        (1, None, [10, 20, 30, 40]),
        (2, None, [10, 20, 30]),
        (9, None, []),
        (1, 20, [10, 30]),
        (2, 100, [10, 20, 30]),
    ],
)
def test_the_last_ones_and_multiples_are_kept(keep_last: int, keep_every: int | None, gone: list[int]) -> None:
    policy = CheckpointPolicy(keep_last=keep_last, keep_every=keep_every)
    assert superfluous([10, 20, 30, 40, 50], policy) == gone


def test_old_ones_go_once_a_newer_one_is_complete(tmp_path: Path) -> None:
    run = Tiny(tmp_path, keep_last=2, keep_every=3)
    for _ in range(6):
        run.step()
        run.save()
    run.checkpoints.finish()
    assert [path.name for path in sorted(run.folder.iterdir())] == [f"step-{step:08d}" for step in (3, 5, 6)]


def test_a_synchronous_save_is_complete_at_once(tmp_path: Path) -> None:
    run = Tiny(tmp_path, asynchronous=False)
    run.step()
    run.checkpoints.save(run.state)
    assert verify(run.folder / "step-00000001").facts["step"] == 1


def test_an_asynchronous_save_is_completed_by_a_later_step(tmp_path: Path) -> None:
    run = Tiny(tmp_path)
    run.step()
    run.checkpoints.save(run.state)
    assert run.checkpoints.complete() == []
    while not run.checkpoints.complete():
        run.checkpoints.poll()
    assert verify(run.folder / "step-00000001").facts["samples"] == 4


# -- the checkpoint to resume from ---------------------------------------------------------------------


def test_where_there_is_none_there_is_nothing_to_resume(tmp_path: Path) -> None:
    run = Tiny(tmp_path)
    assert run.checkpoints.resume(run.state) is None


@pytest.fixture
def two(tmp_path: Path) -> Tiny:
    """A run with the checkpoints of steps 1 and 2."""
    run = Tiny(tmp_path)
    for _ in range(2):
        run.step()
        run.save()
    return run


def damage(path: Path) -> None:
    with (path / "__0_0.distcp").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\xff")


def test_the_newest_complete_one_is(two: Tiny) -> None:
    path = two.folder / "step-00000003"
    path.mkdir()
    (path / "common.pt").write_bytes(b"cut sho")
    assert two.checkpoints.resume(two.state) == two.folder / "step-00000002"
    assert not path.exists()  # the files of a killed save are removed


def test_a_damaged_one_is_reported_and_set_aside(two: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    damage(two.folder / "step-00000002")
    assert two.checkpoints.resume(two.state) == two.folder / "step-00000001"
    assert two.state.step == 1
    output = capsys.readouterr().out
    assert "step-00000002 is damaged: __0_0.distcp was changed" in output
    assert (two.folder / "damaged-step-00000002").exists()


def test_where_all_are_damaged_a_run_does_not_begin_anew_by_itself(two: Tiny) -> None:
    for step in (1, 2):
        damage(two.folder / f"step-0000000{step}")
    for _ in range(2):  # the second start gets the same error
        with pytest.raises(ArtifactError, match="every checkpoint is damaged"):
            two.checkpoints.resume(two.state)


def test_a_pickle_that_was_swapped_is_not_loaded(two: Tiny, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    (two.folder / "step-00000002" / ".metadata").write_bytes(f"cos\nmkdir\n(S'{harm}'\ntR.".encode())
    with pytest.raises(ArtifactError, match=r"\.metadata has \d+ bytes"):
        two.checkpoints.load(two.state, two.folder / "step-00000002")
    assert not harm.exists()


def test_a_save_that_fails_in_the_background_is_an_error_of_the_next_poll(two: Tiny) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    two.step()
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, before[1]))  # acts like a full disk: OSError in the writer
    try:
        with pytest.raises(StageError, match=r"step-00000003 could not be written: rank 0: .* File too large"):
            two.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert two.checkpoints.resume(two.state) == two.folder / "step-00000002"


def test_its_manifest_has_what_was_consumed_and_who_had_which_part(two: Tiny) -> None:
    facts = read_manifest(two.folder / "step-00000002").facts
    assert (facts["step"], facts["samples"]) == (2, 8)
    assert facts["grid"]["processes"] == facts["grid"]["tensor"] == 1


@pytest.mark.parametrize("in_order", [True, False])
def test_a_weight_that_is_stored_in_another_order_is_refused_by_name(in_order: bool) -> None:
    weight = torch.arange(12.0).view(4, 3)

    def build(key: str, data: torch.Tensor, *_: object) -> list[ShardedTensor]:
        return [ShardedTensor.from_rank_offsets(key, data if in_order else data.flip(0))]

    stored = ShardedTensorFactory("layer.weight", weight, build, lambda parts: parts)
    if in_order:
        assert [part.key for part in regular(stored)] == ["layer.weight"]
        return
    with pytest.raises(StageError, match=r"layer\.weight: Megatron stores this weight in another order"):
        list(regular(stored))
