"""Steps on the hardware alone: CUDA's results, NCCL, memory bandwidth, matrix products."""

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from baton.tasks.hardware.accelerators import Accelerator, accelerator
from baton.workflows.gpu_check.step import Check, CheckFailed

if TYPE_CHECKING:
    from torch import Tensor

REPEATS = 20
# shares of the table's peak: below, the GPU is throttled; above, the table is wrong
LEAST, MOST = 0.5, 1.02
FP8_FROM = (8, 9)  # compute capability: Ada, Hopper and later


def cuda(check: Check) -> None:
    """Check a product on each GPU and an NCCL all-reduce, and measure memory bandwidth."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    for number in range(torch.cuda.device_count()):
        ones = torch.ones(256, 256, device=f"cuda:{number}", dtype=torch.bfloat16)
        if not bool((ones @ ones == 256).all()):
            raise CheckFailed(f"GPU {number}: a product of ones is not 256 everywhere")
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    reduced = torch.ones(1 << 20, device="cuda:0")
    dist.all_reduce(reduced)
    dist.destroy_process_group()
    if float(reduced.sum()) != 1 << 20:
        raise CheckFailed("NCCL's all_reduce of one process changed the numbers")
    source = torch.empty(1 << 30, device="cuda:0", dtype=torch.uint8)
    target = torch.empty_like(source)
    check.figure("GPUs", torch.cuda.device_count())
    check.figure("copy, read and written", 2 * source.numel() / seconds(lambda: target.copy_(source)) / 1e9, "GB/s")


def gemm(check: Check) -> None:
    """Measure matrix products in bf16, and in fp8 if the GPU has it, against the table of peaks."""
    import torch

    size, gpus = check.size.matrix, check.machine.gpus
    device = "cuda" if gpus else "cpu"
    flop = 2 * size**3
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    measured = {"bf16": flop / seconds(lambda: torch.mm(left, right)) / 1e12}
    if not gpus or gpus[0].capability >= FP8_FROM:
        measured["fp8"] = flop / seconds(_fp8_product(left, right)) / 1e12
    known = accelerator(gpus[0].name) if gpus else None
    for precision, tflops in measured.items():
        check.figure(precision, tflops, "TFLOP/s")
        if peak := _peak(known, precision):
            check.figure(f"{precision} of the table's peak", tflops / peak, "%")
    for precision, tflops in measured.items():
        if (peak := _peak(known, precision)) and not LEAST <= tflops / peak <= MOST:
            raise CheckFailed(
                f"{tflops:.0f} TFLOP/s in {precision}, and tasks/hardware/accelerators.py has a peak of {peak:.0f} for "
                f"{gpus[0].name}: expected {LEAST:.0%} to {MOST:.0%} of it"
            )


def _fp8_product(left: "Tensor", right: "Tensor") -> Callable[[], object]:
    import torch
    from torch.nn.functional import ScalingType, scaled_mm

    a, b = (matrix.to(torch.float8_e4m3fn) for matrix in (left, right.t().contiguous()))
    one = torch.ones((), device=left.device)
    tensorwise = ScalingType.TensorWise
    return lambda: scaled_mm(a, b.t(), one, tensorwise, one, tensorwise, use_fast_accum=left.is_cuda)


def _peak(known: Accelerator | None, precision: str) -> float | None:
    """TFLOP/s; None: not in the table."""
    peak = known.peak(precision) if known else None
    return peak / 1e12 if peak else None


def seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median time of a call after three warm-up calls, synchronized with the device."""
    import torch

    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    times = []
    for _ in range(3 + repeats):
        wait()
        began = perf_counter()
        work()
        wait()
        times.append(perf_counter() - began)
    return statistics.median(times[3:])
