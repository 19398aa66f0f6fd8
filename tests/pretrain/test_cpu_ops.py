"""The CPU's operations, compared with those of torch and Megatron, forward and backward."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

# isort: split  (baton.tasks.pretrain.megatron before megatron.core)
import baton.tasks.pretrain.megatron  # noqa: F401
from baton.tasks.pretrain.attention import fused
from baton.tasks.pretrain.cpu_attention import ROWS, attend
from baton.tasks.pretrain.cpu_ops import rms_norm, rotate, swiglu

# isort: split
from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd as megatrons_rotation

Operation = Callable[..., Tensor]


def plain_swiglu(gate_and_up: Tensor) -> Tensor:
    gate, up = gate_and_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def plain_norm(rows: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(rows, (rows.size(-1),), weight, 1e-6)


def our_norm(rows: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(rows, weight, 1e-6)


def angles(sequence: int, size: int) -> Tensor:
    half = torch.arange(sequence)[:, None] * 10000.0 ** -(torch.arange(0, size, 2) / size)
    return torch.cat([half, half], dim=-1)[:, None, None]


def megatrons(heads: Tensor) -> Tensor:
    turned: Tensor = megatrons_rotation(heads, angles(heads.size(0), heads.size(-1)))
    return turned


def ours(heads: Tensor) -> Tensor:
    return rotate(heads, angles(heads.size(0), heads.size(-1)))


def both_ways(operation: Operation, *inputs: Tensor) -> list[Tensor]:
    """Return the result, and the gradients of a fixed weighted sum of it."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    result = operation(*leaves)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view(result.shape)
    result.backward(weights)
    return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def randoms(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=random).to(dtype) for shape in shapes]


PAIRS: dict[str, tuple[Operation, Operation, list[tuple[int, ...]]]] = {
    "norm": (our_norm, plain_norm, [(5, 3, 24), (24,)]),
    "norm of heads": (our_norm, plain_norm, [(5, 3, 4, 8), (8,)]),
    "swiglu": (swiglu, plain_swiglu, [(5, 3, 24)]),
    "rotation": (ours, megatrons, [(7, 3, 4, 8)]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_it_is_the_plain_operation_to_fp32_rounding(name: str) -> None:
    mine, plain, shapes = PAIRS[name]
    inputs = randoms(*shapes)
    for got, expected in zip(both_ways(mine, *inputs), both_ways(plain, *inputs), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", PAIRS)
def test_in_bf16_it_errs_no_more_than_the_plain_one(name: str) -> None:
    mine, plain, shapes = PAIRS[name]
    inputs = randoms(*shapes, dtype=torch.bfloat16)
    truth = both_ways(plain, *(tensor.float() for tensor in inputs))
    for got, other, true in zip(both_ways(mine, *inputs), both_ways(plain, *inputs), truth, strict=True):
        assert (got - true).norm() <= 1.1 * (other - true).norm() + 1e-3 * true.norm()


def test_inputs_are_left_as_they_are() -> None:
    for mine, _, shapes in PAIRS.values():
        inputs = randoms(*shapes)
        before = [tensor.clone() for tensor in inputs]
        both_ways(mine, *inputs)
        for tensor, copy in zip(inputs, before, strict=True):
            assert tensor.equal(copy)


# -- attention ----------------------------------------------------------------------------------------


def plain_attention(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None, window: int | None) -> Tensor:
    rows, columns = query.size(2), key.size(2)
    allowed = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
    allowed = allowed.triu(columns - rows - window + 1) if window else allowed
    allowed = allowed & ~hidden if hidden is not None else allowed
    return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, enable_gqa=True)


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 2 * ROWS + 9),
    before=st.integers(0, 70),
    groups=st.integers(1, 3),
    heads_in_group=st.integers(1, 3),
    window=st.none() | st.integers(1, 200),
    documents=st.booleans(),
    attention=st.sampled_from([attend, fused]),  # the CPU's and the GPU's implementation
)
def test_attention_is_torchs(
    rows: int, before: int, groups: int, heads_in_group: int, window: int | None, documents: bool, attention: Operation
) -> None:
    columns = before + rows
    # (sequence, batch, heads, head size) in memory, as in Megatron
    shapes = [(rows, 2, groups * heads_in_group, 4), (columns, 2, groups, 4), (columns, 2, groups, 4)]
    inputs = [tensor.permute(1, 2, 0, 3) for tensor in randoms(*shapes)]
    document = torch.arange(columns) // 40
    hidden = (document[before:, None] != document)[None, None].expand(2, 1, -1, -1) if documents else None
    found = both_ways(lambda q, k, v: attention(q, k, v, hidden, window, None), *inputs)
    expected = both_ways(lambda q, k, v: plain_attention(q, k, v, hidden, window), *inputs)
    for got, true in zip(found, expected, strict=True):
        torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-5)


def test_attention_in_bf16_is_near_the_exact_one() -> None:
    """Attention on the CPU rounds scores to bf16, and torch's flash attention does not."""
    inputs = [tensor.permute(1, 2, 0, 3) for tensor in randoms((300, 2, 4, 32), (300, 2, 2, 32), (300, 2, 2, 32))]
    rounded = [tensor.bfloat16() for tensor in inputs]
    exact = both_ways(lambda q, k, v: plain_attention(q, k, v, None, None), *(tensor.float() for tensor in rounded))
    found = both_ways(lambda q, k, v: attend(q, k, v, None, None, None), *rounded)
    for got, true in zip(found, exact, strict=True):
        assert (got - true).norm() < 0.01 * true.norm()
