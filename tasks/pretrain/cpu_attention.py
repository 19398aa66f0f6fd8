"""Causal attention in plain batched matrix products, a block of queries at a time, for CPUs.

torch's flash attention multiplies small tiles; on a CPU without AMX they run at a fraction of what
oneDNN makes of large bf16 products. Here a block of queries of all heads meets its keys in one
batched product. Scores are rounded to the model's precision as in Megatron's own DotProductAttention,
and computed again for the backward pass: memory grows with the sequence, not with its square.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.pretrain.memory import CPU

ROWS = CPU.attention_rows  # in a block. More: larger products. Fewer: less above the diagonal, more in the cache


def attend(
    query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None, window: int | None, scale: float | None
) -> Tensor:
    """Attention of (batch, heads, rows, head size) to (batch, groups, columns, head size); the last row is
    that of the last column.

    hidden: (batch, 1, rows, columns), bool: what is not seen beside the future. window: columns that a row
    looks back on, its own included. scale: default 1 / sqrt(head size)."""
    scale = query.size(-1) ** -0.5 if scale is None else scale
    result: Tensor = _Attend.apply(query, key, value, hidden, window, scale)
    return result


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        hidden: Tensor | None,
        window: int | None,
        scale: float,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.rest = hidden, window, scale
        keys, values = _by_group(key), _by_group(value)
        result = _empty_like(query)
        for block in _blocks(query, key, window):
            weights = block.weights(block.cut(query), keys, hidden, window, scale)
            block.put(weights @ values[:, block.columns], result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value = ctx.saved_tensors
        hidden, window, scale = ctx.rest
        keys, values = _by_group(key), _by_group(value)
        for_query = _empty_like(query)
        for_keys, for_values = (torch.zeros_like(part, dtype=torch.float32) for part in (keys, values))
        for block in _blocks(query, key, window):
            queries, gradients = block.cut(query), block.cut(gradient)
            weights = block.weights(queries, keys, hidden, window, scale)
            for_values[:, block.columns] += weights.mT @ gradients
            of_weights = gradients @ values[:, block.columns].mT
            scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype).mul_(scale)
            for_keys[:, block.columns] += scores.mT @ queries
            block.put(scores @ keys[:, block.columns], for_query)
        back = (part.to(key.dtype).view(key.shape) for part in (for_keys, for_values))
        return for_query, *back, None, None, None


@dataclass(frozen=True)
class _Block:
    """Some rows, and the columns that any of them sees."""

    rows: slice
    columns: slice
    groups: int

    def cut(self, heads: Tensor) -> Tensor:
        """(batch, heads, rows, head size) → (batch x groups, a group's heads x this block's rows, head size)"""
        block: Tensor = heads[:, :, self.rows].unflatten(1, (self.groups, -1)).flatten(2, 3).flatten(0, 1)
        return block

    def put(self, block: Tensor, heads: Tensor) -> None:
        """The way back."""
        place = heads[:, :, self.rows].unflatten(1, (self.groups, -1))
        place.copy_(block.view(place.shape))

    def weights(self, queries: Tensor, keys: Tensor, hidden: Tensor | None, window: int | None, scale: float) -> Tensor:
        """(batch x groups, a group's heads x rows, columns): softmax of the scores."""
        rows, columns = self.rows.stop - self.rows.start, self.columns.stop - self.columns.start
        unseen = queries.new_full((rows, columns), float("-inf"))
        future = unseen.triu(columns - rows + 1)
        if window is not None:
            future += unseen.tril(columns - rows - window)
        heads = queries.size(1) // rows
        scores = torch.baddbmm(future.repeat(heads, 1), queries, keys[:, self.columns].mT, alpha=scale)
        if hidden is not None:
            unseen_here = hidden[:, :, None, self.rows, self.columns]
            shape = (hidden.size(0), self.groups, heads, rows, columns)
            scores.view(shape).masked_fill_(unseen_here, float("-inf"))
        return torch.softmax(scores, -1)


def _blocks(query: Tensor, key: Tensor, window: int | None) -> Iterator[_Block]:
    rows, columns = query.size(2), key.size(2)
    for start in range(0, rows, ROWS):
        stop = min(start + ROWS, rows)
        before = columns - rows  # of the first row's column
        first = max(0, before + start - window + 1) if window is not None else 0
        yield _Block(slice(start, stop), slice(first, before + stop), key.size(1))


def _by_group(heads: Tensor) -> Tensor:
    """(batch x groups, columns, head size), each group's columns side by side in memory: at the stride that
    they come with, products take twice the time."""
    return heads.flatten(0, 1).contiguous()


def _empty_like(heads: Tensor) -> Tensor:
    """(batch, heads, rows, head size) that lies in memory as Megatron has it, by row."""
    batch, count, rows, size = heads.shape
    return heads.new_empty(rows, batch, count, size).permute(1, 2, 0, 3)
