"""A process group of one in the test's process, for tests that do not need several."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tasks.pretrain.layout import Layout
from tasks.pretrain.process import model_parallel

# isort: split
from megatron.core import parallel_state


@contextmanager
def alone(seed: int = 1234) -> Iterator[None]:
    if dist.is_initialized():  # an export made one, which lasts as long as its process
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with model_parallel(Layout(), seed):
            yield
    finally:
        dist.destroy_process_group()
