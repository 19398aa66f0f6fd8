"""Train the same small model on the same data under many layouts, in each rank (ranks.py).

Every layout in FOLDER/layouts.json, all for the same number of processes, is trained from the same seed, one after
the other in the same processes. The result of each is FOLDER/<subject>-<layout>.pt: the loss and the gradient norm
of each step, and the full weights, assembled from the ranks' parts.
"""

import gc
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from baton.tasks.pretrain.batches import build_datasets, micro_batches
from baton.tasks.pretrain.initialization import shards
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.process import model_parallel
from baton.tasks.pretrain.train_step import Training
from tests.pretrain.parity_layouts import STEPS, VOCABULARY, spec
from tests.pretrain.tiny import END

# isort: split
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding


class OneDevice(ProcessGroupGloo):
    """A gloo group on the process's only device. By default, each of Megatron's ~40 groups has its own, whose thread
    wakes up a hundred times a second; with eight processes on two cores this costs half of the time."""

    device = ProcessGroupGloo.create_default_device()

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stubs lack it
        options._devices, options._timeout = [self.device], timeout
        super().__init__(store, rank, size, options)


def train(subject: str, layout: Layout, data: Path, folder: Path) -> None:
    expected = spec(subject, layout)
    with model_parallel(layout, expected.seed):
        dataset, _ = build_datasets(expected, [data], VOCABULARY, folder / "index")
        training = Training(expected, VOCABULARY)
        losses, norms = [], []
        for step in range(STEPS):
            batches = micro_batches(
                dataset,
                expected.samples_at(step),
                expected.global_batch,
                layout.micro_batch,
                END if expected.mask_documents else None,
            )
            losses.append(training.gradients(batches))
            norms.append(training.gradient_norm())
            training.update(norms[-1])
            training.scheduler.step(increment=1)
        weights = gathered(training)
    if dist.get_rank() == 0:
        found = {"losses": losses, "norms": norms, "weights": weights}
        torch.save(found, folder / f"{subject}-{layout.name()}.pt")
        print(f"{subject} {layout.name()}: {losses[0]:.4f} → {losses[-1]:.4f}", flush=True)


def gathered(training: Training) -> dict[str, torch.Tensor]:
    """Return the full weights by name. Checks that every element exists, and is equal on ranks that share it."""
    mine = [
        (part.key, part.global_shape, part.global_offset, part.data.detach().view(_local_shape(part)))
        for chunk in training.chunks
        for part in shards(chunk)
    ]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    whole: dict[str, torch.Tensor] = {}
    for name, shape, offset, local in (item for rank in everyone for item in rank):
        tensor = whole.setdefault(name, torch.full(shape, float("nan")))
        place = tensor[tuple(slice(start, start + size) for start, size in zip(offset, local.shape, strict=True))]
        if not (place.isnan() | (place == local)).all():
            raise AssertionError(f"{name}: ranks that share a weight have different values")
        place.copy_(local)
    for name, tensor in whole.items():
        if tensor.isnan().any():
            raise AssertionError(f"{name}: parts are missing on all ranks")
    return whole


def _local_shape(part: Any) -> tuple[int, ...]:
    """Return the part's shape, with the axes of the layer and the expert in front."""
    return (*[1] * part.prepend_axis_num, *part.local_shape)


def main(folder: Path, data: Path) -> None:
    torch.set_num_threads(1)
    distributed_c10d.ProcessGroupGloo = OneDevice  # type: ignore[misc]  # torch passes no options on to gloo
    store, rank, world = next(rendezvous("env://"))
    for number, (subject, words) in enumerate(json.loads((folder / "layouts.json").read_text())):
        names = PrefixStore(str(number), store)  # a group must not find the addresses of its predecessor
        dist.init_process_group("gloo", store=names, rank=rank, world_size=world)
        train(subject, Layout.model_validate(words), data, folder)
        dist.destroy_process_group()
        # The threads of each group end with the model, which is in reference cycles and in a cache of Megatron's.
        RotaryEmbedding.forward.cache_clear()
        gc.collect()
