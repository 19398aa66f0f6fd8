"""Fused output projection and cross-entropy for a few tokens at a time.

The logits of all tokens are the largest tensor of a small model's step. Here a piece of the logits is computed, turned
in place into the gradient of its losses, and consumed by the two matrix products of the backward pass. So after the
forward pass the gradients are complete up to one factor common to all tokens (as in Liger Kernel), and nothing is
recomputed.

The result is numerically the same as that of tensor_parallel.vocab_parallel_cross_entropy, with logits in the model's
precision, softmax in fp32, and its gradient in the model's precision.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from baton.tasks.hardware.memory import CPU, GPU
from baton.tasks.pretrain.megatron import CUDA

KERNELS = GPU if CUDA else CPU
# Bytes of logits held at a time: enough for large matrix products, and for few pieces, since each piece adds to the
# full weight gradient
PIECE_BYTES = KERNELS.logits
# Bytes of logits in fp32 at a time, so that they stay in a CPU's cache
TILE_BYTES = KERNELS.logits_in_fp32


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, mask: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Return each token's cross-entropy in nats, in fp32, with the shape of `labels`.

    hidden: (*labels.shape, width). weight: (vocabulary, width), or with a `group` this rank's equal part of it; the
    other arguments, and the result, are then the same on all its ranks.
    mask: each token's weight. The incoming gradient of the losses must be a multiple of it, as after a masked sum or
    mean; otherwise raises RuntimeError.
    """
    needed = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    flat = hidden.flatten(0, -2), weight, labels.flatten(), mask.flatten().float()
    losses: Tensor = _LinearCrossEntropy.apply(*flat, group, needed)
    return losses.view(labels.shape)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        mask: Tensor,
        group: dist.ProcessGroup | None,
        needed: bool,
    ) -> Tensor:
        part = weight.size(0)
        labels = labels - (part * group.rank() if group is not None else 0)
        share = mask / _total(mask)  # leaves the factor 1 / (micro batches), which is mostly exact
        rows = max(1, PIECE_BYTES // (part * weight.element_size()))
        tokens = hidden.size(0)
        losses = torch.empty_like(mask)
        hidden_gradient = torch.empty_like(hidden) if needed else None
        weight_gradient: Tensor | None = None
        for start in range(0, tokens, rows):
            piece = slice(start, start + rows)
            logits = hidden[piece] @ weight.t()
            losses[piece] = _losses(logits, labels[piece], share[piece], group, needed)
            if hidden_gradient is None:
                continue
            hidden_gradient[piece] = logits @ weight
            product = logits.t() @ hidden[piece]
            if weight_gradient is None:
                weight_gradient = product.float() if tokens > rows else product
            else:
                weight_gradient += product
        if weight_gradient is not None:
            ctx.save_for_backward(hidden_gradient, weight_gradient.to(weight.dtype), mask)
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden_gradient, weight_gradient, mask = ctx.saved_tensors
        factor = gradient.sum()
        deviation = (gradient - factor * (mask / _total(mask))).abs().amax()
        # NaN passes, and is detected by the gradient norm
        proportional = ~(deviation > 1e-5 * gradient.abs().amax())
        torch._assert_async(proportional, "the gradient of the losses is not a multiple of their mask")
        return hidden_gradient * factor, weight_gradient * factor, None, None, None, None


def _total(mask: Tensor) -> Tensor:
    """Return the mask's sum, or 1 for a micro batch that is entirely masked."""
    total = mask.sum()
    return torch.where(total == 0, torch.ones_like(total), total)


def _losses(logits: Tensor, labels: Tensor, share: Tensor, group: dist.ProcessGroup | None, gradient: bool) -> Tensor:
    """Return the tokens' losses. With `gradient`, `logits` is overwritten with d(sum of share x loss) / d(logits).

    logits: (tokens, part of the vocabulary). labels: relative to the part's first token; out of range if another rank
    has the token."""
    losses = []
    rows = max(1, TILE_BYTES // (logits.size(1) * 4))
    for tile, label, part in zip(logits.split(rows), labels.split(rows), share.split(rows), strict=True):
        scores = tile.float()
        highest = scores.amax(1, keepdim=True)
        _reduce(highest, dist.ReduceOp.MAX, group)
        in_range = (label >= 0) & (label < tile.size(1))
        column = torch.where(in_range, label, 0).unsqueeze(1)
        chosen = scores.sub_(highest).gather(1, column).squeeze(1) * in_range
        sums = torch.stack([scores.exp_().sum(1), chosen])
        _reduce(sums, dist.ReduceOp.SUM, group)
        losses.append(sums[0].log() - sums[1])
        if gradient:
            scores.mul_((part / sums[0]).unsqueeze(1)).scatter_add_(1, column, -(part * in_range).unsqueeze(1))
            tile.copy_(scores)
    return torch.cat(losses)


def _reduce(tensor: Tensor, operation: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None) -> None:
    if group is not None and group.size() > 1:
        dist.all_reduce(tensor, operation, group=group)
