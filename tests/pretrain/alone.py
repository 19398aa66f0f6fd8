"""A process group of size one in the test's process, for tests that do not need several processes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.megatron import BACKEND
from baton.tasks.pretrain.process import model_parallel

# isort: split
from megatron.core import parallel_state


@contextmanager
def alone(seed: int = 1234) -> Iterator[None]:
    # an export may have created one, which exists until the process ends or vLLM destroys torch's group
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(BACKEND, store=HashStore(), rank=0, world_size=1)
    try:
        with model_parallel(Layout(), seed):
            yield
    finally:
        dist.destroy_process_group()
