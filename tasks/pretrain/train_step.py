"""One process's part of training under any layout: the model, its optimizer, and one step.

This needs Megatron's process groups (baton.tasks.pretrain.process), and is independent of jobs, files and logs.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from baton.tasks.pretrain.batches import Batch
from baton.tasks.pretrain.megatron import DEVICE
from baton.tasks.pretrain.megatron_hooks import moe_losses
from baton.tasks.pretrain.model import build_chunks, transformer_config
from baton.tasks.pretrain.optimizer import build_optimizer, clip_gradients
from baton.tasks.pretrain.spec import PretrainSpec

# isort: split
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module


class Training:
    """A model and its optimizer, distributed over the processes."""

    def __init__(self, spec: PretrainSpec, vocab_size: int) -> None:
        self.spec = spec
        self.config = transformer_config(spec.model, spec.precision, spec.layout)
        self.chunks = build_chunks(spec.model, self.config, vocab_size, spec.seed)
        shared = spec.layout.data * spec.layout.context > 1
        ddp_config = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=shared,
            use_distributed_optimizer=spec.layout.distributed_optimizer,
        )
        self.wrapped = [
            DistributedDataParallel(
                config=self.config,
                ddp_config=ddp_config,
                module=Float16Module(self.config, chunk) if self.config.bf16 else chunk,
                disable_bucketing=number > 0,  # only the first chunk's gradients are ready last
            )
            for number, chunk in enumerate(self.chunks)
        ]
        self.optimizer, self.scheduler = build_optimizer(spec, self.wrapped)
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = self.optimizer.scale_loss
        if shared:
            # Gradients are reduced only in the last micro batch
            syncs = [chunk.no_sync for chunk in self.wrapped]
            self.config.no_sync_func = syncs if len(syncs) > 1 else syncs[0]
        self.forward_backward = get_forward_backward_func()

    def gradients(self, batches: list[Batch]) -> float:
        """Run the forward and backward passes of this rank's micro batches, and return the loss over all ranks'
        tokens."""
        for chunk in self.wrapped:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        return self._pass(batches, forward_only=False)

    def update(self, grad_norm: float) -> None:
        """Clip the gradients and run the optimizer's step."""
        clip_gradients(self.optimizer, grad_norm)
        self.optimizer.step_with_ready_grads()

    def gradient_norm(self) -> float:
        """Return the global gradient norm over all ranks. Call it once, between `gradients` and `update`."""
        self.optimizer.prepare_grads()
        return float(self.optimizer.get_grad_norm())

    def balance(self, micro_batches: int) -> dict[str, float]:
        """Return the auxiliary losses of a mixture of experts since the last call, as means over layers and a step's
        micro batches."""
        if not self.spec.model.experts:
            return {}
        return {name: float(value) for name, value in moe_losses(micro_batches, self.spec.model.layers).items()}

    @torch.no_grad()
    def evaluate(self, batches: list[Batch]) -> float:
        """Return the loss in evaluation mode, without gradients."""
        for chunk in self.wrapped:
            chunk.eval()
        loss = self._pass(batches, forward_only=True)
        for chunk in self.wrapped:
            chunk.train()
        return loss

    def _pass(self, batches: list[Batch], forward_only: bool) -> float:
        """Return the mean loss in nats per token over all processes."""
        iterators = [iter(batches) for _ in self.wrapped]  # each chunk of an interleaved pipeline reads all of them
        parts = self.forward_backward(
            forward_step_func=_forward,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=self.wrapped,
            num_microbatches=len(batches),
            seq_length=self.spec.sequence_length,
            micro_batch_size=self.spec.layout.micro_batch,
            forward_only=forward_only,
        )
        # Only the last pipeline stage has losses. Tensor parallel ranks have the same losses, which cancel in the
        # quotient
        total = torch.zeros(2, dtype=torch.float64, device=DEVICE)
        for part in parts:
            total += part["sum_and_count"]
        dist.all_reduce(total)
        return float(total[0] / total[1])


def _forward(batches: Iterator[Batch], model: torch.nn.Module) -> tuple[Tensor, Any]:
    """Return the model's per-token losses, and a function that reduces them; this is Megatron's forward_step_func."""
    batch = next(batches).on_device()
    mask = batch.loss_mask
    losses = model(batch.tokens, batch.position_ids, batch.attention_mask, labels=batch.labels, loss_mask=mask)
    return losses, partial(_masked_sum, mask)


def _masked_sum(mask: Tensor, losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return (sum, number of tokens, reported values). Megatron's schedule divides sum by number in place, so the
    reported values are a copy."""
    total, count = (losses.float() * mask).sum(), mask.sum().int()
    return total, count, {"sum_and_count": torch.stack([total.detach(), count]).double()}
