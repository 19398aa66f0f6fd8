"""Rotary position embedding in plain torch: frequencies by the papers' formulas, and rotation.

All computation is in fp32, as in Megatron-Core and transformers, since at position 100,000 rounding at another point
gives a different angle.
"""

import math

import torch
from torch import Tensor

from baton.tasks.convert.architecture import Rope


def frequencies(rope: Rope, size: int) -> Tensor:
    """Return the radians per position of each pair of a head's dimensions, (size / 2,), in fp32."""
    plain = 1.0 / rope.theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    match rope.scaling:
        case "default":  # Su et al. 2021, section 3.2.2
            return plain
        case "linear":  # Chen et al. 2023, "Extending Context Window": positions are divided
            return plain / rope.factor
        case "llama3":
            return _interpolated(plain, rope.factor, _llama3_ramp(rope, plain))
        case "yarn":
            return _interpolated(plain, rope.factor, _yarn_ramp(rope, size))


def _interpolated(plain: Tensor, factor: float, ramp: Tensor) -> Tensor:
    """Interpolate between frequencies divided by `factor` (ramp 0) and unchanged ones (ramp 1)."""
    return plain / factor * (1 - ramp) + plain * ramp


def _llama3_ramp(rope: Rope, plain: Tensor) -> Tensor:
    """Return the ramp of Llama 3.1 (Grattafiori et al. 2024; formula from its released code), which depends on the
    rotations in the original context."""
    rotations = rope.original_max_position_embeddings * plain / (2 * math.pi)
    return ((rotations - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)


def _yarn_ramp(rope: Rope, size: int) -> Tensor:
    """Return YaRN's ramp (Peng et al. 2023, section 3.2, as in its released code) over the dimensions, from the
    dimension with beta_fast rotations in the original context to that with beta_slow."""
    first, last = (_dimension_with(rotations, rope, size) for rotations in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    width = last - first or 0.001  # the released code's guard against division by zero
    return 1 - ((torch.arange(size // 2, dtype=torch.float32) - first) / width).clamp(0, 1)


def _dimension_with(rotations: float, rope: Rope, size: int) -> float:
    """Return the fractional dimension with this number of rotations, YaRN's r(d) solved for d."""
    positions = rope.original_max_position_embeddings
    return size * math.log(positions / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))


def cosines_sines(rope: Rope, size: int, length: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines for positions 0 to length - 1, each (length, 1, size / 2), to broadcast over heads."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies(rope, size)).unsqueeze(1)
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def rotate(x: Tensor, rope: Rope, interleaved: bool = False) -> Tensor:
    """Rotate queries or keys (batch, length, heads, size) by their positions.

    A pair is a dimension and the one half a head further or, if `interleaved`, the adjacent one. In both cases the
    result has the first elements of all pairs before the second ones, as in Megatron and transformers; queries and keys
    have the same order, so their products do not change.
    """
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    cosines, sines = cosines_sines(rope, x.size(-1), x.size(1))
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
