"""Find the layout nearest to a run's that fits into memory."""

import itertools
from collections.abc import Iterator

from tasks.hardware.memory import Place
from tasks.pretrain.layout import Layout, layouts
from tasks.pretrain.memory import estimate
from tasks.pretrain.spec import PretrainSpec

RECOMPUTE = ("none", "selective", "full")
MORE_NODES = (1, 2, 4, 8)  # multiples of the nodes to try, in order


def fitting(spec: PretrainSpec, vocab_size: int, place: Place) -> Layout | None:
    """The layout that fits and differs least, on the same number of nodes or a multiple of it. None if none fits."""
    wrong_with = spec.layout_check(vocab_size)
    for times in MORE_NODES:
        like = spec.layout.model_copy(update={"nodes": times * spec.layout.nodes})
        for candidate in sorted(_candidates(like, spec), key=like.distance):
            if wrong_with(candidate):
                continue
            if place.has_room_for(estimate(spec.model_copy(update={"layout": candidate}), vocab_size, place.kernels)):
                return candidate
    return None


def _candidates(like: Layout, spec: PretrainSpec) -> Iterator[Layout]:
    """Layouts with the same number of processes that take less memory; among equally near ones, the fastest first. A
    matrix is never split across nodes."""
    spreads = [
        spread
        for spread in layouts(like, spec.model)
        if spread.tensor <= like.processes and spread.virtual_pipeline <= like.virtual_pipeline
    ]
    choices = itertools.product(
        RECOMPUTE[RECOMPUTE.index(like.recompute) :],
        (True,) if like.distributed_optimizer else (True, False),
        [size for size in range(like.micro_batch, 0, -1) if like.micro_batch % size == 0],
        spreads,
    )
    for recompute, optimizer, micro_batch, spread in choices:
        changes = {"recompute": recompute, "distributed_optimizer": optimizer, "micro_batch": micro_batch}
        yield spread.model_copy(update=changes)
