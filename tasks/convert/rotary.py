"""Rotary position embedding in plain torch: its frequencies from the papers' formulas, and the turning.

All in fp32, as Megatron-Core and transformers have it: at position 100,000 an angle that was rounded
elsewhere is another angle.
"""

import math

import torch
from torch import Tensor

from tasks.convert.architecture import Rope


def frequencies(rope: Rope, size: int) -> Tensor:
    """Radians per position of each pair of a head's dimensions, (size / 2,), fp32."""
    plain = 1.0 / rope.theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    match rope.scaling:
        case "default":  # Su et al. 2021, section 3.2.2
            return plain
        case "linear":  # Chen et al. 2023, "Extending Context Window": positions are divided
            return plain / rope.factor
        case "llama3":
            return _mixed(plain, rope.factor, _llama3_kept(rope, plain))
        case "yarn":
            return _mixed(plain, rope.factor, _yarn_kept(rope, size))


def _mixed(plain: Tensor, factor: float, kept: Tensor) -> Tensor:
    """Frequencies of which `kept`, 0 to 1, stays as it was; the rest is divided by `factor`."""
    return plain / factor * (1 - kept) + plain * kept


def _llama3_kept(rope: Rope, plain: Tensor) -> Tensor:
    """Llama 3.1 (Grattafiori et al. 2024; the formula is in its released code): by turns in the original positions."""
    turns = rope.original_positions * plain / (2 * math.pi)
    return ((turns - rope.low_frequency) / (rope.high_frequency - rope.low_frequency)).clamp(0, 1)


def _yarn_kept(rope: Rope, size: int) -> Tensor:
    """YaRN (Peng et al. 2023), section 3.2, as in its released code: a ramp over the dimensions, from the one
    that makes beta_fast turns in the original positions to the one that makes beta_slow."""
    first, last = (_dimension_with(turns, rope, size) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    width = last - first or 0.001  # its released code's guard against a division by zero
    return 1 - ((torch.arange(size // 2, dtype=torch.float32) - first) / width).clamp(0, 1)


def _dimension_with(turns: float, rope: Rope, size: int) -> float:
    """The dimension, not a whole number, that makes so many turns: YaRN's r(d) solved for d."""
    return size * math.log(rope.original_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def cosines_sines(rope: Rope, size: int, length: int) -> tuple[Tensor, Tensor]:
    """Of positions 0 to length - 1, each (length, 1, size / 2): the 1 is for the heads."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies(rope, size)).unsqueeze(1)
    return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def turn(x: Tensor, rope: Rope, paired: bool = False) -> Tensor:
    """Queries or keys (batch, length, heads, size), turned by their positions.

    A pair is a dimension and the one half a head further, or, `paired`, the one beside it. Then too the
    result has all first ones before all second ones, as Megatron and transformers leave it: queries and
    keys alike, so their products are the same.
    """
    first, second = (x[..., 0::2], x[..., 1::2]) if paired else x.chunk(2, dim=-1)
    cosines, sines = cosines_sines(rope, x.size(-1), x.size(1))
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
