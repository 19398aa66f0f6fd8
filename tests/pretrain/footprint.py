"""Measure the real model's memory: weights, gradients, optimizer and activations in bytes.

torchrun … -m tests.pretrain.footprint FOLDER measures each spec of FOLDER/specs.json and writes the footprints of
all ranks to FOLDER/footprints.json.
"""

import json
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from baton.tasks.hardware.memory import Memory
from baton.tasks.pretrain.batches import Batch
from baton.tasks.pretrain.megatron import CUDA, DEVICE
from baton.tasks.pretrain.process import model_parallel
from baton.tasks.pretrain.spec import PretrainSpec
from baton.tasks.pretrain.train_step import Training


def footprint(spec: PretrainSpec) -> Memory:
    """Return this rank's memory. Requires Megatron's process groups in the spec's layout."""
    assert spec.model.vocab_size
    training = Training(spec.resolved(spec.model.vocab_size, continued=False), spec.model.vocab_size)
    parameters = [parameter for chunk in training.wrapped for parameter in chunk.parameters()]
    buffers = [buffer for chunk in training.wrapped for buffer in chunk.buffers + chunk.expert_parallel_buffers]
    batches = list(_batches(spec))
    training.gradients(batches)  # the first call fills caches
    with peak() as activations:
        training.gradients(batches)
    largest = activations()  # measured before the first update creates the optimizer's state
    training.update(training.gradient_norm())
    return Memory(
        weights=size(parameters),
        gradients=size(buffer.grad_data for buffer in buffers),
        optimizer=size(_state(training)) - size(parameters),
        activations=largest,
    )


def size(tensors: Iterable[Tensor]) -> int:
    """Return the number of bytes of the storages, each counted once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _state(training: Training) -> Iterator[Tensor]:
    """Return the model's weights and the optimizer's tensors."""
    yield from (parameter for chunk in training.wrapped for parameter in chunk.parameters())
    for part in getattr(training.optimizer, "chained_optimizers", [training.optimizer]):
        adam = part.optimizer
        yield from (parameter for group in adam.param_groups for parameter in group["params"])
        yield from (item for state in adam.state.values() for item in state.values() if isinstance(item, Tensor))


def _batches(spec: PretrainSpec) -> Iterator[Batch]:
    layout = spec.layout
    shape = (layout.micro_batch, spec.sequence_length // layout.context)
    with DEVICE:
        for _ in range(spec.global_batch // (layout.micro_batch * layout.data)):
            tokens = torch.randint(0, spec.model.vocab_size or 0, shape)
            documents = torch.arange(spec.sequence_length).expand(layout.micro_batch, -1) // 16
            places = torch.arange(shape[1]).expand(shape)
            yield Batch(tokens, tokens, torch.ones(shape), places, documents if spec.mask_documents else None)


# -- the peak of allocated bytes ---------------------------------------------------------------------


@contextmanager
def peak() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the block's peak of torch's allocations, without earlier ones."""
    if CUDA:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield lambda: torch.cuda.max_memory_allocated() - before
        return
    with _Live() as live:
        yield lambda: live.peak


class _Live(TorchDispatchMode):
    """Track each storage that an operation creates until it is freed. (torch's profiler would miss those that the
    threads of a collective free.)"""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.known.update(_storage(tensor)._cdata for tensor in tree_leaves((args, kwargs)) if _is_tensor(tensor))
        made = function(*args, **(kwargs or {}))
        for tensor in filter(_is_tensor, tree_leaves(made)):
            storage = _storage(tensor)
            if storage._cdata not in self.known:
                self.known.add(storage._cdata)
                self._add(storage.nbytes())
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        return made

    def _add(self, count: int) -> None:
        self.now += count
        self.peak = max(self.peak, self.now)

    def _gone(self, identity: int, count: int) -> None:
        self.now -= count
        self.known.discard(identity)


def _is_tensor(item: Any) -> bool:
    return isinstance(item, Tensor)


def _storage(tensor: Tensor) -> Any:
    return tensor.untyped_storage()


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    found = []
    for words in json.loads((folder / "specs.json").read_text()):
        spec = PretrainSpec.model_validate(words)
        with model_parallel(spec.layout, spec.seed):
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, vars(footprint(spec)))
            found.append(everyone)
    if dist.get_rank() == 0:
        (folder / "footprints.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
