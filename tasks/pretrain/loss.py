"""The output projection and its cross-entropy as one, a few tokens at a time.

All tokens' logits are the largest tensor of a small model's step, and only a way to the loss. Here a
piece of them is made, turned in place into the gradient of its losses, and used up in the two
products of the backward pass. So gradients are ready after the forward pass but for one factor,
the same for all tokens (Liger Kernel does so too), and nothing is computed twice.

The numbers are those of tensor_parallel.vocab_parallel_cross_entropy: logits in the model's
precision, the softmax in fp32, its gradient in the model's precision again.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tasks.pretrain.megatron import CUDA
from tasks.pretrain.memory import CPU, GPU

# isort: split
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region, gather_from_sequence_parallel_region

KERNELS = GPU if CUDA else CPU
# Logits held at a time, bytes: enough for large matrix products; few pieces, for each of them adds to the
# whole gradient of the weight.
PIECE_BYTES = KERNELS.logits
# Of them in fp32 at a time, bytes. On a CPU they stay in its cache.
TILE_BYTES = KERNELS.logits_in_fp32


class FusedLossGPTModel(GPTModel):
    """GPTModel that goes from hidden states to losses by `linear_cross_entropy`; without labels, GPTModel."""

    def _postprocess(self, **arguments: Any) -> Tensor:
        labels, mask, hidden = (arguments[name] for name in ("labels", "loss_mask", "hidden_states"))
        if labels is None or not self.post_process or self.config.mtp_num_layers is not None:
            return super()._postprocess(**arguments)  # type: ignore[no-any-return]
        shared = self.share_embeddings_and_output_weights
        weight = self.shared_embedding_or_output_weight() if shared else self.output_layer.weight
        group = self.pg_collection.tp
        # backward, each of them adds up what the ranks' parts of the vocabulary say
        if self.config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, group=group)
        else:
            hidden = copy_to_tensor_model_parallel_region(hidden, group)
        mask = torch.ones_like(labels) if mask is None else mask
        # Megatron's hidden states are (sequence, batch, width)
        return linear_cross_entropy(hidden, weight, labels.t(), mask.t(), group).t().contiguous()


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, mask: Tensor, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Each token's cross-entropy in nats, fp32, in the shape of `labels`.

    hidden: (*labels.shape, width). weight: (vocabulary, width), or with a `group` this rank's equal part
    of it; the other arguments are then the same on all its ranks, and so is the result.
    mask: how much each token counts. The gradient that comes back for the losses must be a multiple
    of it, as after a masked sum or mean; RuntimeError when it is not.
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
        share = mask / _total(mask)  # the factor that is left is then 1 / (micro batches): mostly an exact one
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
            torch.mm(logits, weight, out=hidden_gradient[piece])
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
        apart = (gradient - factor * (mask / _total(mask))).abs().amax()
        # what is not a number passes: the gradient's norm will tell
        follows = ~(apart > 1e-5 * gradient.abs().amax())
        torch._assert_async(follows, "the gradient of the losses is not a multiple of the mask they were made with")
        return hidden_gradient * factor, weight_gradient * factor, None, None, None, None


def _total(mask: Tensor) -> Tensor:
    """The mask's sum; 1 for a micro batch that does not count at all."""
    total = mask.sum()
    return torch.where(total == 0, torch.ones_like(total), total)


def _losses(logits: Tensor, labels: Tensor, share: Tensor, group: dist.ProcessGroup | None, gradient: bool) -> Tensor:
    """The tokens' losses. With `gradient`, `logits` then hold d(sum of share x loss) / d(logits).

    logits: (tokens, part of the vocabulary). labels: counted from the part's first token, outside of
    it where another rank has the token."""
    losses = []
    rows = max(1, TILE_BYTES // (logits.size(1) * 4))
    for tile, label, part in zip(logits.split(rows), labels.split(rows), share.split(rows), strict=True):
        scores = tile.float()
        highest = scores.amax(1, keepdim=True)
        _reduce(highest, dist.ReduceOp.MAX, group)
        here = (label >= 0) & (label < tile.size(1))
        column = torch.where(here, label, 0).unsqueeze(1)
        chosen = scores.sub_(highest).gather(1, column).squeeze(1) * here
        sums = torch.stack([scores.exp_().sum(1), chosen])
        _reduce(sums, dist.ReduceOp.SUM, group)
        losses.append(sums[0].log() - sums[1])
        if gradient:
            scores.mul_((part / sums[0]).unsqueeze(1)).scatter_add_(1, column, -(part * here).unsqueeze(1))
            tile.copy_(scores)
    return torch.cat(losses)


def _reduce(tensor: Tensor, operation: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None) -> None:
    if group is not None and group.size() > 1:
        dist.all_reduce(tensor, operation, group=group)
