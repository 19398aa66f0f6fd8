"""How much arithmetic a token costs, and how much the machine could do: their ratio is MFU.

FLOPs are counted as in PaLM (Chowdhery et al. 2022, appendix B): matrix products only, two per
multiply-add, the backward pass twice the forward, recomputation not counted. Attention is counted
for the keys that a causal mask leaves, (sequence + 1) / 2 on average.
"""

import time

import torch

from tasks.pretrain.model_spec import ModelSpec

# Dense peak in TFLOP/s, from the makers' data sheets (no sparsity). Matched in order, by substring.
PEAK_TFLOPS = {
    "B200": {"bf16": 2250.0, "fp32": 75.0},
    "H200": {"bf16": 989.4, "fp32": 66.9},
    "H100 PCIe": {"bf16": 756.0, "fp32": 51.2},
    "H100": {"bf16": 989.4, "fp32": 66.9},
    "A100": {"bf16": 312.0, "fp32": 19.5},
    "L40S": {"bf16": 362.0, "fp32": 91.6},
    "L4": {"bf16": 121.0, "fp32": 30.3},
    "A10": {"bf16": 125.0, "fp32": 31.2},
}


def flops_per_token(model: ModelSpec, vocab_size: int, sequence_length: int) -> float:
    """FLOPs of training on one token, forward and backward."""
    projections = model.hidden * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    attention = 2 * model.heads * model.head_dim * (sequence_length + 1) / 2  # scores, and their sum of values
    feed_forward = 3 * model.hidden * model.ffn_hidden
    multiply_adds = model.layers * (projections + attention + feed_forward) + model.hidden * vocab_size
    return 3 * 2 * multiply_adds


def peak_flops(precision: str) -> float | None:
    """The device's peak in FLOP/s: from the table on a GPU (None when it is not in it), measured with
    a large matrix product on a CPU."""
    if not torch.cuda.is_available():
        return _measured_gemm(torch.bfloat16 if precision == "bf16" else torch.float32)
    name = torch.cuda.get_device_name()
    return next((peak[precision] * 1e12 for part, peak in PEAK_TFLOPS.items() if part in name), None)


def _measured_gemm(dtype: torch.dtype, size: int = 2048, repeats: int = 5) -> float:
    random = torch.Generator()  # its own: the training's random state is part of its checkpoints
    left, right = (torch.randn(size, size, dtype=dtype, generator=random) for _ in range(2))
    best = 0.0
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(left, right)
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best
