"""RMSNorm, SwiGLU and rotary embedding for CPUs with few passes over memory.

On a CPU each elementwise operation is a pass over memory, and autograd's backward pass needs several where these
functions need one. Results match torch's and Megatron's operations: they are computed in fp32 and rounded once. Only
the inputs, and the gate after silu, are saved for the backward pass.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute torch.nn.functional.rms_norm over the last dimension."""
    result: Tensor = _RMSNorm.apply(rows, weight, eps)
    return result


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float32)
        scale = length.square_().div_(rows.size(-1)).add_(eps).rsqrt_()
        ctx.save_for_backward(rows, weight, scale)
        result: Tensor = (rows.float() * scale).mul_(weight.float()).to(rows.dtype)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        rows, weight, scale = ctx.saved_tensors
        width = rows.size(-1)
        rows_dtype, rows, scale = rows.dtype, rows.float().reshape(-1, width), scale.view(-1, 1)
        flat = gradient.float().reshape(-1, width)
        products = flat * rows
        weight_gradient = torch.mv(products.t(), scale.view(-1))
        along = torch.mv(products, weight.float()).view(-1, 1)  # component along the row, which the norm removes
        along.mul_(scale.pow(3)).div_(-width)
        result = (flat * weight.float()).mul_(scale).addcmul_(rows, along)
        return result.view(gradient.shape).to(rows_dtype), weight_gradient.to(weight.dtype), None


def swiglu(gate_and_up: Tensor) -> Tensor:
    """Return silu(gate) x up; gate and up are the halves of the last dimension."""
    result: Tensor = _SwiGLU.apply(gate_and_up)
    return result


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_and_up: Tensor) -> Tensor:
        gate, up = gate_and_up.chunk(2, dim=-1)
        opened = F.silu(gate)
        ctx.save_for_backward(gate_and_up, opened)
        return opened * up

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        gate_and_up, opened = ctx.saved_tensors
        gate, up = gate_and_up.chunk(2, dim=-1)
        result = torch.empty_like(gate_and_up)
        for_gate, for_up = result.chunk(2, dim=-1)
        torch.ops.aten.silu_backward(gradient * up, gate, grad_input=for_gate)
        torch.mul(opened, gradient, out=for_up)
        return result


def rotate(heads: Tensor, angles: Tensor, interleaved: bool = False) -> Tensor:
    """Apply the rotary embedding to (sequence, batch, heads, head size) by (sequence, 1, 1, head size), whose halves
    are equal. The signature is that of Transformer Engine's fused kernel, which this function replaces."""
    if interleaved or angles.size(-1) != heads.size(-1):
        raise ValueError("rotary embedding must cover whole heads and must not be interleaved")
    result: Tensor = _Rotate.apply(heads, angles)
    return result


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, angles: Tensor) -> Tensor:
        cosines, sines = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        ctx.save_for_backward(cosines, sines)
        return _rotated(heads, cosines, sines, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        cosines, sines = ctx.saved_tensors
        return _rotated(gradient, cosines, sines, -1), None


def _rotated(heads: Tensor, cosines: Tensor, sines: Tensor, direction: int) -> Tensor:
    half = heads.size(-1) // 2
    result = heads * cosines
    result[..., :half].addcmul_(heads[..., half:], sines[..., :half], value=-direction)
    result[..., half:].addcmul_(heads[..., :half], sines[..., half:], value=direction)
    return result
