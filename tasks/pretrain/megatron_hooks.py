"""Private hooks into Megatron-Core, and the differences between the versions that Baton supports: 0.16.1 (Python 3.11)
and 0.19.2 (Python 3.12).

Each hook names the versions that need it; a hook without a version is for both. No other module uses Megatron's private
names or checks its version, except megatron_on_cpu.py, which must run before megatron.core is imported.
tests/pretrain/test_megatron_hooks.py fails when a hook is no longer needed.
"""

import queue
from abc import abstractmethod
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from baton.tasks.pretrain.cpu_ops import rotate
from baton.tasks.pretrain.loss import linear_cross_entropy
from baton.tasks.pretrain.megatron import CUDA

# isort: split
import torch
from megatron.core.dist_checkpointing.mapping import ShardedStateDict
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies import torch as torch_strategies
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region, gather_from_sequence_parallel_region
from megatron.core.transformer.moe import moe_utils
from torch import Tensor

RECENT = tuple(map(int, version("megatron-core").split(".")[:2])) >= (0, 19)

if RECENT:
    from megatron.core.transformer.moe import moe_logging

    # "mcore" is the method of 0.16. The default, "nvrx", requires the nvidia-resiliency-ext package
    ASYNC_SAVE = {"async_strategy": "mcore"}
    # Suppresses a deprecation warning on every rank
    torch_strategies._logged_mcore_async_deprecation = True
else:
    ASYNC_SAVE = {}
    # Version 0.16 does not define this name without Transformer Engine, so a router that computes in fp32 fails
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None

if not CUDA:
    # The function is None without Transformer Engine, but Megatron calls it when apply_rope_fusion is set
    rope_utils.fused_apply_rotary_pos_emb = rotate


def submodules(spec: Any) -> Any:
    """Return a layer specification's submodules, to be replaced in place. In 0.19 the feed-forward and the experts are
    a functools.partial instead of a ModuleSpec."""
    return spec.keywords["submodules"] if isinstance(spec, partial) else spec.submodules


def moe_losses(micro_batches: int, layers: int) -> dict[str, Tensor]:
    """Return the auxiliary losses of a mixture of experts since the last call, by name, as means over `layers` and
    `micro_batches`. Collective."""
    losses: dict[str, Tensor] = {}
    report = moe_logging.get_moe_metrics_tracker().report if RECENT else moe_utils.track_moe_metrics
    report(1 / micro_batches, 0, total_loss_dict=losses, num_layers=layers)
    return losses


def reset_moe_state() -> None:
    """Drop the process-wide state of a deleted model: its layers, process groups and loss scale, which
    parallel_state.destroy_model_parallel leaves."""
    if RECENT:
        moe_logging.destroy_moe_metrics_tracker()
    else:
        moe_utils.get_moe_layer_wise_logging_tracker().clear()
    moe_utils.MoEAuxLossAutoScaler.main_loss_backward_scale = None


def owned_range(optimizer: DistributedOptimizer, weight: Tensor) -> tuple[int, int]:
    """Return the elements [start, stop) of a flattened weight whose optimizer state this rank holds."""
    owned = optimizer._get_model_param_range_map(weight)["param"]
    return owned.start, owned.end


class SaveStrategy(torch_strategies.TorchDistSaveShardedStrategy):
    """Plans a torch_dist save as Megatron does; `request` writes the planned buckets."""

    def __init__(self) -> None:
        super().__init__("torch_dist", 1, thread_count=1)

    @abstractmethod
    def request(self, writer: FileSystemWriterAsync, planned: Any) -> AsyncRequest:
        """Return the request that writes the buckets. `planned`: the arguments of save_state_dict_async_finalize."""

    def async_save(
        self, sharded_state_dict: ShardedStateDict, checkpoint_dir: Path, async_strategy: str = "mcore"
    ) -> AsyncRequest:
        # Megatron would start a multiprocessing.Manager process for this queue, which takes seconds
        filesystem_async._results_queue = queue.SimpleQueue()
        return super().async_save(sharded_state_dict, checkpoint_dir, **ASYNC_SAVE)

    def _get_save_and_finalize_callbacks(
        self, writer: FileSystemWriterAsync, planned: Any, async_strategy: str = "mcore"
    ) -> AsyncRequest:
        return self.request(writer, planned)


class FusedLossGPTModel(GPTModel):
    """GPTModel whose losses come from `linear_cross_entropy`, without all logits in memory. Without labels it returns
    logits, as GPTModel does."""

    def _postprocess(self, **arguments: Any) -> Tensor:
        labels, mask, hidden = (arguments[name] for name in ("labels", "loss_mask", "hidden_states"))
        if labels is None or not self.post_process or self.config.mtp_num_layers is not None:
            return super()._postprocess(**arguments)  # type: ignore[no-any-return]
        shared = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if shared else self.output_layer.weight
        group = self.pg_collection.tp
        # The backward pass of either function sums the gradients over the ranks' parts of the vocabulary
        if self.config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, group=group)
        else:
            hidden = copy_to_tensor_model_parallel_region(hidden, group)
        mask = torch.ones_like(labels) if mask is None else mask
        # Megatron's hidden states are (sequence, batch, width)
        return linear_cross_entropy(hidden, weight, labels.t(), mask.t(), group).t().contiguous()
