"""A run saved under one layout and continued under another equals a run under a single layout.

Every chain starts from the weights of the undisturbed run, which has one process, and uses its layouts in order.
Each layout trains STEPS steps from the checkpoint of the previous one.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from baton.tasks.pretrain.batches import build_datasets, micro_batches
from baton.tasks.pretrain.checkpoint import Checkpoints, TrainingState, load_chunks
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.process import distributed
from baton.tasks.pretrain.spec import CheckpointPolicy, PretrainSpec
from baton.tasks.pretrain.train_step import Training
from tests.pretrain import parity_layouts
from tests.pretrain.alone import alone
from tests.pretrain.ranks import Ranks
from tests.pretrain.tiny import make_shards

Undisturbed = Callable[[str, str], dict[str, list[float]]]

STEPS = 5  # steps of each layout
VOCABULARY = 260

ONE = Layout(micro_batch=2)
DP2 = Layout(micro_batch=2, processes=2)
TP2 = DP2.model_copy(update={"tensor": 2})
PP2 = DP2.model_copy(update={"pipeline": 2})
PP2X2 = PP2.model_copy(update={"virtual_pipeline": 2})
CP2 = DP2.model_copy(update={"context": 2})
EP2 = DP2.model_copy(update={"expert": 2})
TP2_EP2 = TP2.model_copy(update={"expert": 2, "sequence_parallel": True})


def sharded(layout: Layout) -> Layout:
    return layout.model_copy(update={"distributed_optimizer": True})


@dataclass(frozen=True)
class Chain:
    model: str  # a name in tests.pretrain.parity_layouts
    layouts: tuple[Layout, ...]
    precision: str = "fp32"

    def __str__(self) -> str:
        return f"{self.model} {self.precision} {' → '.join(layout.name() for layout in self.layouts)}"


CHAINS = [
    Chain("dense", (TP2, DP2, PP2, PP2X2)),
    Chain("dense", (sharded(TP2), sharded(DP2), sharded(PP2), ONE)),
    Chain("dense", (PP2X2, sharded(PP2X2), CP2, TP2)),
    Chain("dense", (sharded(TP2), sharded(DP2), PP2, sharded(DP2)), "bf16"),
    Chain("biased", (ONE, TP2, sharded(DP2), sharded(PP2X2))),
    Chain("experts", (EP2, ONE, PP2, TP2_EP2)),
    Chain("experts", (sharded(EP2), sharded(DP2), sharded(PP2X2), EP2)),
    Chain("experts", (sharded(TP2_EP2), sharded(DP2), sharded(EP2), PP2), "bf16"),
]
# the chains of `make test`, without a mark, and of `make test-long`; to save time, the others run in `make survive`
MARKS: dict[Chain, list[pytest.MarkDecorator]] = {
    CHAINS[3]: [],
    CHAINS[1]: [pytest.mark.long],
    CHAINS[6]: [pytest.mark.long],
}
# the order of sums differs, and in bf16 also the rounding between them
BOUNDS = {"fp32": 1e-4, "bf16": 1e-3}


def spec(model: str, precision: str, layout: Layout) -> PretrainSpec:
    words = parity_layouts.spec(model, layout).model_dump()
    shape = words["model"] | {"vocab_size": VOCABULARY}
    return PretrainSpec.model_validate(words | {"precision": precision, "model": shape})


def continue_to(step: int, wanted: dict[str, Any], folder: Path, data: Path) -> None:
    """Train the steps of one layout, in each of its ranks. Appends the steps' losses and gradient norms to
    FOLDER/losses.jsonl, followed by the held-out loss."""
    spec = PretrainSpec.model_validate(wanted)
    with distributed(spec.layout, spec.seed):
        torch.set_num_threads(1)
        dataset, held_out = build_datasets(spec, [data], VOCABULARY, folder / "index")
        training = Training(spec, VOCABULARY)
        state = TrainingState(training.chunks, training.optimizer, training.scheduler)
        checkpoints = Checkpoints(folder / "checkpoints", CheckpointPolicy())
        checkpoints.resume(state)
        while state.step < step:
            batches = micro_batches(dataset, state.samples, spec.global_batch, spec.layout.micro_batch)
            loss = training.gradients(batches)
            norm = training.gradient_norm()
            training.update(norm)
            training.scheduler.step(increment=1)
            state.step += 1
            state.samples += spec.global_batch
            state.losses = [*state.losses, loss]
            note(folder, loss=loss, norm=norm)
        checkpoints.save(state)
        checkpoints.finish()
        note(folder, held_out=training.evaluate(micro_batches(held_out, 0, 8, spec.layout.micro_batch)))


def note(folder: Path, **values: float) -> None:
    if dist.get_rank() == 0:
        with (folder / "losses.jsonl").open("a") as stream:
            stream.write(json.dumps(values) + "\n")


def run(chain: Chain, folder: Path, data: Path, steps: int = STEPS) -> dict[str, list[float]]:
    """Return the losses and gradient norms of all steps, and the held-out loss after each layout."""
    folder.mkdir(parents=True)
    for number, layout in enumerate(chain.layouts, 1):
        wanted = spec(chain.model, chain.precision, layout).model_dump(mode="json")
        Ranks(layout.world, folder, continue_to, steps * number, wanted, folder, data).succeed()
    lines = [json.loads(line) for line in (folder / "losses.jsonl").read_text().splitlines()]
    return {name: [line[name] for line in lines if name in line] for name in ("loss", "norm", "held_out")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A cached function that runs a model in one process, in a given precision."""
    folder = tmp_path_factory.mktemp("undisturbed")

    @cache
    def run_alone(model: str, precision: str) -> dict[str, list[float]]:
        return run(Chain(model, (ONE,), precision), folder / model / precision, data, 4 * STEPS)

    return run_alone


@pytest.mark.long
@pytest.mark.parametrize(
    "chain",
    [pytest.param(chain, marks=MARKS.get(chain, [pytest.mark.slow])) for chain in CHAINS],
    ids=str,
)
def test_a_run_goes_on_under_another_layout(chain: Chain, undisturbed: Undisturbed, data: Path, tmp_path: Path) -> None:
    found, expected = run(chain, tmp_path / "run", data), undisturbed(chain.model, chain.precision)
    bound = BOUNDS[chain.precision]
    assert len(found["loss"]) == 4 * STEPS
    assert expected["loss"][-1] < expected["loss"][0] - 0.5
    assert found["loss"] == pytest.approx(expected["loss"], rel=bound)
    assert found["norm"] == pytest.approx(expected["norm"], rel=10 * bound)
    weights_are_read_in_one_process(chain, tmp_path / "run", found["held_out"][-1], data)


def weights_are_read_in_one_process(chain: Chain, folder: Path, held_out_loss: float, data: Path) -> None:
    """Read the weights as an export does."""
    wanted = spec(chain.model, chain.precision, ONE)
    (path,) = (folder / "checkpoints").glob(f"step-{4 * STEPS:08d}")
    with alone():
        training = Training(wanted, VOCABULARY)
        load_chunks(training.chunks, path)
        _, held_out = build_datasets(wanted, [data], VOCABULARY, folder / "index")
        loss = training.evaluate(micro_batches(held_out, 0, 8, ONE.micro_batch))
    assert loss == pytest.approx(held_out_loss, rel=BOUNDS[chain.precision])
