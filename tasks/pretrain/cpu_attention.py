"""Causal attention for CPUs with batched matrix products, one block of queries at a time.

torch's flash attention multiplies small tiles, which on a CPU without AMX run at a fraction of oneDNN's speed for
large bf16 products. Here one batched product multiplies a block of all heads' queries with its keys. Scores are rounded
to the model's precision as in Megatron's DotProductAttention and recomputed in the backward pass, so memory is linear
in the sequence length.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from baton.tasks.hardware.memory import CPU

# Rows per block: more rows make larger products; fewer cause less work above the diagonal and use the cache better
ROWS = CPU.attention_rows


def attend(
    query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None, window: int | None, scale: float | None
) -> Tensor:
    """Compute attention of (batch, heads, rows, head size) to (batch, groups, columns, head size); the last row is at
    the position of the last column.

    hidden: (batch, 1, rows, columns), bool, True where masked in addition to causality. window: number of columns that
    a row attends to, including its own. scale: 1 / sqrt(head size) by default."""
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
    """Some rows, and the columns that any of them attends to."""

    rows: slice
    columns: slice
    groups: int

    def cut(self, heads: Tensor) -> Tensor:
        """Convert (batch, heads, rows, head size) to (batch x groups, a group's heads x this block's rows, head
        size)."""
        block: Tensor = heads[:, :, self.rows].unflatten(1, (self.groups, -1)).flatten(2, 3).flatten(0, 1)
        return block

    def put(self, block: Tensor, heads: Tensor) -> None:
        """Write a block into its rows of `heads`, the inverse of `cut`."""
        place = heads[:, :, self.rows].unflatten(1, (self.groups, -1))
        place.copy_(block.view(place.shape))

    def weights(self, queries: Tensor, keys: Tensor, hidden: Tensor | None, window: int | None, scale: float) -> Tensor:
        """Return the softmax of the scores, (batch x groups, a group's heads x rows, columns)."""
        rows, columns = self.rows.stop - self.rows.start, self.columns.stop - self.columns.start
        unseen = queries.new_full((rows, columns), float("-inf"))
        future = unseen.triu(columns - rows + 1)
        if window is not None:
            future += unseen.tril(columns - rows - window)
        heads = queries.size(1) // rows
        scores = torch.baddbmm(future.repeat(heads, 1), queries, keys[:, self.columns].mT, alpha=scale)
        if hidden is not None:
            masked = hidden[:, :, None, self.rows, self.columns]
            shape = (hidden.size(0), self.groups, heads, rows, columns)
            scores.view(shape).masked_fill_(masked, float("-inf"))
        return torch.softmax(scores, -1)


def _blocks(query: Tensor, key: Tensor, window: int | None) -> Iterator[_Block]:
    rows, columns = query.size(2), key.size(2)
    for start in range(0, rows, ROWS):
        stop = min(start + ROWS, rows)
        before = columns - rows  # columns before the first row's
        first = max(0, before + start - window + 1) if window is not None else 0
        yield _Block(slice(start, stop), slice(first, before + stop), key.size(1))


def _by_group(heads: Tensor) -> Tensor:
    """Return contiguous (batch x groups, columns, head size); with the input's strides, products take twice as long."""
    return heads.flatten(0, 1).contiguous()


def _empty_like(heads: Tensor) -> Tensor:
    """Return an empty (batch, heads, rows, head size) tensor in Megatron's memory layout, rows first."""
    batch, count, rows, size = heads.shape
    return heads.new_empty(rows, batch, count, size).permute(1, 2, 0, 3)
