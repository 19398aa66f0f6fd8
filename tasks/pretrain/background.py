"""Write Megatron's torch_dist checkpoints from a background thread while training continues.

Tensors that a step changes are copied before the next step, and the thread works on the copies. Megatron would start a
process instead. A thread ends with the training however the training ends, so that nothing continues to write to a
folder to which a restarted run writes too; and starting processes blocked each save for seconds.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import torch
from blake3 import blake3
from torch import Tensor
from torch.distributed.checkpoint.filesystem import SerializationFormat, _write_item

from baton.tasks.core.manifest import FileEntry
from baton.tasks.pretrain.megatron import CUDA
from baton.tasks.pretrain.megatron_hooks import SaveStrategy

# isort: split
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedStateDict, ShardedTensor
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync, WriteBucket
from megatron.core.dist_checkpointing.strategies.state_dict_saver import save_state_dict_async_finalize

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> "Future[T]":
    """Run `work` in a low-priority daemon thread."""
    future: Future[T] = Future()

    def finish() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # on Linux, the priority of this thread only
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=finish, name="checkpoint", daemon=True).start()
    return future


class ThreadStrategy(SaveStrategy):
    """Saves whose `async_fn` writes this rank's files and returns their entries for the manifest."""

    def async_save(
        self, sharded_state_dict: ShardedStateDict, checkpoint_dir: Path, async_strategy: str = "mcore"
    ) -> AsyncRequest:
        self._live = {
            item.data.untyped_storage().data_ptr()
            for item in nested_values(sharded_state_dict)
            if isinstance(item, ShardedTensor)
        }
        return super().async_save(sharded_state_dict, checkpoint_dir)

    def request(self, writer: FileSystemWriterAsync, planned: Any) -> AsyncRequest:
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
                # with one thread, since training needs the other cores
                files[name] = FileEntry(Path(path).stat().st_size, blake3().update_mmap(path).hexdigest())
            if results:
                writer.results_queue.put(results)
            return files

        return AsyncRequest(write, (), [lambda: save_state_dict_async_finalize(*planned)])

    def _staged(self, bucket: WriteBucket) -> WriteBucket:
        """Return the bucket with its tensors copied to host memory that nothing else modifies."""
        path, name, (objects, tensors) = bucket
        return path, name, (objects, [(item, self._copy(tensor)) for item, tensor in tensors])

    def _copy(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu":
            return tensor.to("cpu", non_blocking=True)  # pinned memory, which torch's caching allocator reuses
        return tensor.clone() if tensor.untyped_storage().data_ptr() in self._live else tensor
