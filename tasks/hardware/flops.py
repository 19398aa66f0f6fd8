"""FLOPs per token and the device's peak FLOP/s, from which MFU follows for a given throughput.

FLOPs are counted as in PaLM (Chowdhery et al. 2022, appendix B): matrix products only, two per multiply-add, the
backward pass twice the forward pass, no recomputation. Attention counts only keys within causality and the sliding
window; document masks, which depend on the data, are not subtracted. For a mixture, only a token's experts count.
"""

import itertools
import json
import math
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from baton.infra.storage.durable import write_json
from baton.tasks.hardware.accelerators import accelerator
from baton.tasks.models.model_spec import ModelSpec

if TYPE_CHECKING:
    import torch

LEAST = 3  # minimum number of calls with which a CPU is measured


def flops_per_token(model: ModelSpec, vocab_size: int, sequence_length: int) -> float:
    """Return the FLOPs of the forward and backward pass of one token."""
    projections = model.hidden * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    layer = projections + _feed_forward(model)
    matrices = 2 * (model.layers * layer + model.hidden * vocab_size)
    return 3 * (matrices + attention_flops(model, sequence_length))


def attention_flops(model: ModelSpec, sequence_length: int) -> float:
    """Return the FLOPs of one token's attention in all layers, without projections, in the forward pass alone."""
    keys = keys_per_query(sequence_length, model.sliding_window)
    return 2 * model.layers * 2 * model.heads * model.head_dim * keys  # scores, and the weighted sum of values


def _feed_forward(model: ModelSpec) -> int:
    """Return the multiply-adds of a layer's SwiGLU, or of its router, selected experts and shared expert."""
    experts = model.experts
    if experts is None:
        return 3 * model.hidden * model.ffn_hidden
    width = experts.top_k * experts.ffn_hidden + experts.shared_ffn_hidden
    return model.hidden * experts.count + 3 * model.hidden * width


def keys_per_query(sequence_length: int, window: int | None) -> float:
    """Return the mean number of keys to which a token attends in a causal sequence, itself included."""
    full = min(window or sequence_length, sequence_length)  # the most that any token attends to
    return full * (sequence_length - (full - 1) / 2) / sequence_length


def peak_flops(precision: str) -> float | None:
    """Return the device's peak in FLOP/s: on a GPU from the table (None if it is not in the table, or the precision is
    not supported), on a CPU as measured with a large matrix product."""
    import torch  # not at the top: flops_per_token must not need it

    if not torch.cuda.is_available():
        return cpu_peak(precision)
    if precision == "fp32" and torch.backends.cuda.matmul.allow_tf32:
        precision = "tf32"
    known = accelerator(torch.cuda.get_device_name())
    return known.peak(precision) if known else None


def cached_peak(file: Path, precision: str, reached: float = 0.0) -> float | None:
    """Return `peak_flops` for a run that may be resumed. A CPU's peak is measured once and stored in `file`, so that
    MFU does not jump at a resume on the same machine. If the run has `reached` more FLOP/s than the stored peak, since
    the CPU was busy at the time, the peak is measured again, and is at least `reached`."""
    import torch

    if torch.cuda.is_available():
        return peak_flops(precision)
    machine = f"{platform.node()}, {torch.get_num_threads()} threads"
    peaks: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    if peaks.get(machine, 0.0) <= reached:
        peaks[machine] = max(reached, cpu_peak(precision))
        write_json(file, peaks)
    return peaks[machine]


def cpu_peak(precision: str) -> float:
    """Measure this machine's FLOP/s with a large matrix product."""
    import torch

    from baton.tasks.hardware import cpu_matmul

    cpu_matmul.prepare()
    return _measured_gemm(torch.float32 if precision == "fp32" else torch.bfloat16)


def _measured_gemm(dtype: "torch.dtype", size: int = 2048) -> float:
    import torch

    random = torch.Generator()  # not torch's default RNG state, which checkpoints save
    left, right = (torch.randn(size, size, dtype=dtype, generator=random) for _ in range(2))
    return 2 * size**3 / _fastest(lambda: torch.mm(left, right))


def measured_bandwidth(megabytes: int = 256) -> float:
    """Measure the memory bandwidth of this machine: TB/s that its processes together read and write while they copy."""
    import torch

    source = torch.zeros(megabytes << 20, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * source.numel() / _fastest(lambda: target.copy_(source)) / 1e12


def _fastest(operation: Callable[[], object], seconds: float = 0.2) -> float:
    """Return the seconds of the fastest of several calls of an operation that uses all of torch's threads. While other
    programs have the cores, only the CPU time of the threads counts."""
    import torch

    threads, best, end = torch.get_num_threads(), math.inf, time.perf_counter() + seconds
    for number in itertools.count():
        start, used = time.perf_counter(), time.process_time()
        if number >= LEAST and start > end:
            return best
        operation()
        best = min(best, time.perf_counter() - start, (time.process_time() - used) / threads)
    raise AssertionError("counting has no end")
