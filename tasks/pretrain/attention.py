"""Core attention for Megatron with torch's scaled_dot_product_attention and with context parallelism.

On a GPU it uses the flash kernels without Transformer Engine; on a CPU plain matrix products are faster.

With context parallelism, each rank holds two of 2 x context equal chunks of the sequence, the r-th from the front and
the r-th from the back, which balances the causal work (Megatron's order). Keys and values are gathered, queries are not
(Llama 3, section 3.3.2: with grouped queries, keys and values are small). No ring kernel is needed, so this runs
wherever torch does.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from baton.tasks.pretrain.cpu_attention import attend
from baton.tasks.pretrain.megatron import CUDA

# isort: split
from megatron.core import parallel_state
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor


def chunks_of_rank(rank: int, ranks: int) -> tuple[int, ...]:
    """Return the indices of the chunks, of 2 x `ranks`, that a context parallel rank holds; with one rank, of a single
    chunk."""
    return (rank, 2 * ranks - 1 - rank) if ranks > 1 else (0,)


class SDPAttention(torch.nn.Module):
    """A replacement for megatron.core's DotProductAttention that supports only causal attention."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
    ) -> None:
        super().__init__()
        if attn_mask_type is not AttnMaskType.causal:
            raise ValueError(f"attn_mask_type {attn_mask_type}: only causal attention is supported")
        self.softmax_scale = softmax_scale
        self.dropout = config.attention_dropout if attention_dropout is None else attention_dropout
        self.window = config.window_size[0] + 1 if config.window_size else None
        self.group = pg_collection.cp if pg_collection else parallel_state.get_context_parallel_group()

    def forward(
        self,
        query: Tensor,  # (local sequence, batch, heads, head size)
        key: Tensor,  # (local sequence, batch, query groups, head size)
        value: Tensor,
        attention_mask: Tensor | None,  # (batch, 1, local sequence, sequence), True: masked, in addition to causality
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """Return (local sequence, batch, heads x head size)."""
        if packed_seq_params is not None or attention_bias is not None:
            raise ValueError("packed sequences and attention bias are not supported by SDPAttention")
        ranks = self.group.size()
        if ranks > 1:
            key, value = (_GatherSequence.apply(tensor, self.group) for tensor in (key, value))
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        chunks = chunks_of_rank(self.group.rank(), ranks)
        length = query.size(2) // len(chunks)
        parts = []
        for place, chunk in enumerate(chunks):
            rows = slice(place * length, (place + 1) * length)
            end = (chunk + 1) * length  # a chunk's last query is at the position of its last key
            hidden = None if attention_mask is None else attention_mask[:, :, rows, :end]
            parts.append(self._attend(query[:, :, rows], key[:, :, :end], value[:, :, :end], hidden))
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        return out.permute(2, 0, 1, 3).flatten(2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
        if not CUDA:
            return attend(query, key, value, hidden, self.window, self.softmax_scale)
        dropout = self.dropout if self.training else 0.0
        return fused(query, key, value, hidden, self.window, self.softmax_scale, dropout)


def fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hidden: Tensor | None,
    window: int | None,
    scale: float | None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute the same as cpu_attention.attend, with torch's fused kernels."""
    rows, columns = query.size(2), key.size(2)
    window = window if window and window < columns else None
    mask = None
    if hidden is not None or window or rows != columns:
        mask = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril(columns - rows)
        mask = mask.triu(columns - rows - window + 1) if window else mask
        mask = mask & ~hidden if hidden is not None else mask
    grouped = key.size(1) != query.size(1)
    if grouped and (mask is not None or query.dtype == torch.float32):
        # Only torch's flash kernel supports grouped queries, and it supports neither masks nor fp32. The
        # memory-efficient kernel supports both but not grouped queries; otherwise torch silently materializes all
        # scores (tasks/pretrain/memory.py counts these copies)
        key, value = (tensor.repeat_interleave(query.size(1) // key.size(1), dim=1) for tensor in (key, value))
        grouped = False
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=grouped,
    )


class _GatherSequence(torch.autograd.Function):
    """Gather the ranks' chunks into the full sequence; in the backward pass, reduce-scatter the gradient."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, group: dist.ProcessGroup) -> Tensor:
        ranks = group.size()
        held = [chunk for rank in range(ranks) for chunk in chunks_of_rank(rank, ranks)]
        ctx.group, ctx.held = group, held
        gathered = local.new_empty(ranks * local.size(0), *local.shape[1:])
        dist.all_gather_into_tensor(gathered, local.contiguous(), group=group)
        order = sorted(range(2 * ranks), key=held.__getitem__)
        return gathered.view(2 * ranks, -1, *local.shape[1:])[order].flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        ranks = ctx.group.size()
        by_rank = gradient.view(2 * ranks, -1, *gradient.shape[1:])[ctx.held].flatten(0, 1).contiguous()
        local = gradient.new_empty(gradient.size(0) // ranks, *gradient.shape[1:])
        dist.reduce_scatter_tensor(local, by_rank, group=ctx.group)
        return local, None
