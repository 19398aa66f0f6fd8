"""Megatron's torch_dist checkpoints, written by a thread of this process while the training goes on.

What a step changes is copied before the next one; from then on the thread works on the copies. It is
a thread and not a process, as Megatron would have it: it ends with the training however that ends,
so that nothing is left behind that writes into a folder which a restarted run writes to; and starting
processes is what made each save stand still for seconds.
"""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import torch
from blake3 import blake3
from torch import Tensor
from torch.distributed.checkpoint.filesystem import SerializationFormat, _write_item

from tasks.manifest import FileEntry
from tasks.pretrain.megatron import CUDA
from tasks.pretrain.megatron_versions import ASYNC_SAVE

# isort: split
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedStateDict, ShardedTensor
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync, WriteBucket
from megatron.core.dist_checkpointing.strategies.state_dict_saver import save_state_dict_async_finalize
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> "Future[T]":
    """Run `work` in a thread of low priority that ends with the process."""
    future: Future[T] = Future()

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread alone, on Linux
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="checkpoint", daemon=True).start()
    return future


class ThreadStrategy(TorchDistSaveShardedStrategy):
    """Its AsyncRequest's `async_fn` writes this rank's files and returns their entries for the manifest."""

    def __init__(self) -> None:
        super().__init__("torch_dist", 1, thread_count=1)

    def async_save(
        self, sharded_state_dict: ShardedStateDict, checkpoint_dir: Path, async_strategy: str = "mcore"
    ) -> AsyncRequest:
        # Megatron starts a process for its queue of results unless it has one: we only need a queue
        filesystem_async._results_queue = queue.SimpleQueue()
        self._live = {
            item.data.untyped_storage().data_ptr()
            for item in nested_values(sharded_state_dict)
            if isinstance(item, ShardedTensor)
        }
        return super().async_save(sharded_state_dict, checkpoint_dir, **ASYNC_SAVE)

    def _get_save_and_finalize_callbacks(
        self, writer: FileSystemWriterAsync, planned: Any, async_strategy: str = "mcore"
    ) -> AsyncRequest:
        writer.write_buckets = [self._staged(bucket) for bucket in writer.write_buckets]
        if CUDA:
            torch.cuda.synchronize()

        def write() -> dict[str, FileEntry]:
            files, results = {}, {}
            for index, (path, name, (objects, tensors)) in enumerate(writer.write_buckets):
                with Path(path).open("wb") as stream:
                    results[index] = [
                        _write_item(writer.transforms, stream, data, item, name, SerializationFormat.TORCH_SAVE)
                        for item, data in (*objects, *tensors)
                    ]
                    stream.flush()
                    os.fsync(stream.fileno())
                objects.clear()
                tensors.clear()
                # the training needs the cores: one thread
                files[name] = FileEntry(Path(path).stat().st_size, blake3().update_mmap(path).hexdigest())
            if results:
                writer.results_queue.put(results)
            return files

        return AsyncRequest(write, (), [lambda: save_state_dict_async_finalize(*planned)])

    def _staged(self, bucket: WriteBucket) -> WriteBucket:
        """The same with tensors in the CPU's memory that nothing else changes."""
        path, name, (objects, tensors) = bucket
        return path, name, (objects, [(item, self._copy(tensor)) for item, tensor in tensors])

    def _copy(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":
            return tensor.to("cpu", non_blocking=True)  # to pinned memory, which torch keeps for the next time
        return tensor.clone() if tensor.untyped_storage().data_ptr() in self._live else tensor
