"""How much arithmetic a token costs, and how much the machine could do: their ratio is MFU.

FLOPs are counted as in PaLM (Chowdhery et al. 2022, appendix B): matrix products only, two per
multiply-add, the backward pass twice the forward, recomputation not counted. Attention is counted
for the keys that causality and a sliding window leave; that documents are masked from each other,
which depends on the data, is not subtracted. Of a mixture, the experts that a token goes to.
"""

import time
from typing import TYPE_CHECKING

from tasks.pretrain.accelerators import accelerator
from tasks.pretrain.model_spec import ModelSpec

if TYPE_CHECKING:
    import torch


def flops_per_token(model: ModelSpec, vocab_size: int, sequence_length: int) -> float:
    """FLOPs of training on one token, forward and backward."""
    projections = model.hidden * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    keys = keys_per_query(sequence_length, model.sliding_window)
    attention = 2 * model.heads * model.head_dim * keys  # scores, and their sum of values
    layer = projections + attention + _feed_forward(model)
    return 3 * 2 * (model.layers * layer + model.hidden * vocab_size)


def _feed_forward(model: ModelSpec) -> int:
    """Multiply-adds of a layer's SwiGLU, or of a mixture's router, chosen experts and shared expert."""
    experts = model.experts
    if experts is None:
        return 3 * model.hidden * model.ffn_hidden
    width = experts.top_k * experts.ffn_hidden + experts.shared_ffn_hidden
    return model.hidden * experts.count + 3 * model.hidden * width


def keys_per_query(sequence_length: int, window: int | None) -> float:
    """How many keys a token looks at, itself included, on average over a causal sequence."""
    full = min(window or sequence_length, sequence_length)  # as soon as a token has so many
    return full * (sequence_length - (full - 1) / 2) / sequence_length


def peak_flops(precision: str) -> float | None:
    """The device's peak in FLOP/s: from the table on a GPU (None when it is not in it, or has no such
    arithmetic), measured with a large matrix product on a CPU."""
    import torch  # here: the count above is wanted where nothing is computed

    if not torch.cuda.is_available():
        return _measured_gemm(torch.float32 if precision == "fp32" else torch.bfloat16)
    if precision == "fp32" and torch.backends.cuda.matmul.allow_tf32:
        precision = "tf32"
    known = accelerator(torch.cuda.get_device_name())
    return known.peak(precision) if known else None


def _measured_gemm(dtype: "torch.dtype", size: int = 2048, repeats: int = 5) -> float:
    import torch

    random = torch.Generator()  # its own: the training's random state is part of its checkpoints
    left, right = (torch.randn(size, size, dtype=dtype, generator=random) for _ in range(2))
    best = 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(left, right)
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best
