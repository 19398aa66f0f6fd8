"""Set up one process of a torchrun job: its device, process groups and seeds."""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from baton.infra.process.limits import cores
from baton.infra.process.torchrun_env import COLLECTIVE_S
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.megatron import BACKEND, CUDA
from baton.tasks.pretrain.megatron_hooks import reset_moe_state

# isort: split
from megatron.core import parallel_state, tensor_parallel

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # malloc.h


@contextmanager
def distributed(layout: Layout, seed: int) -> Iterator[None]:
    """Set up torch's and Megatron's process groups within the `with` block. Reads torchrun's environment variables."""
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        _keep_freed_memory()
        torch.set_num_threads(max(1, cores() // int(os.environ["LOCAL_WORLD_SIZE"])))
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=COLLECTIVE_S))
    with model_parallel(layout, seed):
        yield
        dist.barrier()
    dist.destroy_process_group()


def _keep_freed_memory() -> None:
    """Stop glibc from returning memory to the kernel. By default it unmaps large blocks at once, and the kernel has to
    clear every page again in the next step, which takes 5 % of a step on one core, and more on several."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)  # allocate large blocks from the heap as well
        libc.mallopt(_M_TRIM_THRESHOLD, -1)  # never shrink the heap
        libc.mallopt(_M_TOP_PAD, 64 << 20)


@contextmanager
def model_parallel(layout: Layout, seed: int) -> Iterator[None]:
    """Set up Megatron's process groups for a layout within the `with` block."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline if layout.virtual_pipeline > 1 else None,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
    )
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        reset_moe_state()
