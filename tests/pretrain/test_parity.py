"""Every layout trains the same model, with the losses, gradient norms and weights of one process."""

import json
from pathlib import Path

import pytest

from baton.tasks.pretrain.layout import Layout
from tests.pretrain import ranks
from tests.pretrain.parity_layouts import SUBJECTS, legal_layouts
from tests.pretrain.parity_table import compare, record, result
from tests.pretrain.tiny import make_shards

pytestmark = pytest.mark.long

# The order of fp32 sums differs; measured differences are at most a tenth of these.
LOSS, NORM, WEIGHTS = 1e-5, 1e-5, 1e-5

# The number of layouts that the same processes train. It is limited, since Megatron never frees its distributed
# optimizer, its groups and their threads.
AT_A_TIME = 12
TIMEOUT_S = 4 * 3600  # the limit for the entire matrix

# The layouts of `make test-long`: each kind of parallelism, and some combinations, on up to four processes.
SOME = [
    ("dense", Layout(processes=1, recompute="full")),
    ("dense", Layout(processes=2, distributed_optimizer=True)),
    ("dense", Layout(processes=2, context=2)),
    ("dense", Layout(processes=2, pipeline=2, virtual_pipeline=2)),
    ("dense", Layout(processes=2, tensor=2, recompute="selective")),
    ("biased", Layout(processes=2, tensor=2, sequence_parallel=True)),
    ("windowed", Layout(processes=2, context=2)),
    ("experts", Layout(processes=2, expert=2)),
    ("experts", Layout(processes=2, tensor=2, expert=2, sequence_parallel=True, distributed_optimizer=True)),
    ("dense", Layout(processes=4, tensor=2, pipeline=2, sequence_parallel=True)),
    ("dense", Layout(processes=4, context=2, distributed_optimizer=True)),
    ("experts", Layout(processes=4, pipeline=2, virtual_pipeline=2, expert=2)),
]


def train(folder: Path, cases: list[tuple[str, Layout]]) -> None:
    """Train each case, and each model in one process for comparison."""
    cases = [*((subject, Layout(micro_batch=8)) for subject in SUBJECTS), *cases]
    folder.mkdir(exist_ok=True)
    data = make_shards(folder / "data")
    for world in sorted({layout.world for _, layout in cases}):
        mine = [(subject, layout.model_dump()) for subject, layout in cases if layout.world == world]
        for start in range(0, len(mine), AT_A_TIME):
            (folder / "layouts.json").write_text(json.dumps(mine[start : start + AT_A_TIME]))
            ranks.parity(world, folder, data).succeed(TIMEOUT_S)


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parity")
    train(folder, [(subject, _with_micro_batch(layout)) for subject, layout in SOME])
    return folder


def _with_micro_batch(layout: Layout) -> Layout:
    return layout.model_copy(update={"micro_batch": 16 // (layout.data * max(2, layout.pipeline))})


@pytest.mark.parametrize(("subject", "layout"), SOME, ids=[f"{name}-{layout.name()}" for name, layout in SOME])
def test_a_layout_trains_the_same_model(some: Path, subject: str, layout: Layout) -> None:
    found = compare(some, subject, layout)
    assert (found.loss, found.norm, found.weights) <= (LOSS, NORM, WEIGHTS)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_every_legal_layout_trains_the_same_model(tmp_path: Path, world: int) -> None:
    """The entire matrix. The results are in the table of docs/testing.md and in tests/pretrain/PARITY.md."""
    cases = [
        (name, layout)
        for name, subject in SUBJECTS.items()
        for layout in (legal_layouts(name, world) if world in subject.worlds else ())
    ]
    try:
        train(tmp_path, cases)
    finally:  # eight processes take hours on two cores, so partial results are recorded
        trained = [(subject, layout) for subject, layout in cases if result(tmp_path, subject, layout).exists()]
        found = [compare(tmp_path, subject, layout) for subject, layout in trained]
        record(world, found)
    apart = [item for item in found if item.loss > LOSS or item.norm > NORM or item.weights > WEIGHTS]
    assert not apart, apart
