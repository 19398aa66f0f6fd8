"""One process among those that torchrun started: its device, its groups, its seeds."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from tasks.pretrain.megatron import BACKEND, CUDA

# isort: split
from megatron.core import parallel_state, tensor_parallel


@contextmanager
def distributed(seed: int) -> Iterator[None]:
    """Megatron's process groups, for as long as the block runs. Reads torchrun's environment."""
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["LOCAL_WORLD_SIZE"])))
    dist.init_process_group(BACKEND)
    parallel_state.initialize_model_parallel()
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)
    yield
    dist.barrier()
    dist.destroy_process_group()
