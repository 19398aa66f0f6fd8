"""Peak throughput, memory size and memory bandwidth of accelerators: dense figures from the vendors' data sheets. These
often state tensor-core figures with sparsity, which are twice as high and irrelevant for training.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """`tflops` is the peak in 10^12 FLOP/s with fp32 accumulation. The fp32 figure is without tensor cores; matrix
    products of fp32 tensors reach the tf32 figure only if torch is allowed to use it."""

    name: str  # as in recipes and SkyPilot
    reported: str  # words contained in torch.cuda.get_device_name()
    memory_gb: float
    tflops: dict[str, float]
    bandwidth: float  # memory bandwidth, TB/s

    def peak(self, precision: str) -> float | None:
        """Return the peak in FLOP/s; None if the precision is not supported."""
        return self.tflops[precision] * 1e12 if precision in self.tflops else None


# The first entry whose words are all in a device's name matches, so specific entries come before general ones.
ACCELERATORS = (
    # NVIDIA GB200 NVL72 data sheet, 1/72 of the rack: FP8 720, BF16 360, TF32 180 PF with sparsity, FP32 5,760 TF
    Accelerator("GB200", "GB200", 186, {"bf16": 2500, "fp8": 5000, "tf32": 1250, "fp32": 80}, 8),
    # NVIDIA HGX B200 data sheet, 1/8 of the board: FP8 72, BF16 36, TF32 18 PF with sparsity, FP32 600 TF
    Accelerator("B200", "B200", 180, {"bf16": 2250, "fp8": 4500, "tf32": 1125, "fp32": 75}, 8),
    # NVIDIA GH200 data sheet: throughput of an H100 SXM; the name has the size of the CPU's memory, not the GPU's
    Accelerator("GH200", "GH200 480GB", 96, {"bf16": 989.4, "fp8": 1978.9, "tf32": 494.7, "fp32": 66.9}, 4),
    # NVIDIA H200 data sheet: NVL 3,341 / 1,671 / 835 and SXM 3,958 / 1,979 / 989 with sparsity; FP32 60 and 67
    Accelerator("H200-NVL", "H200 NVL", 141, {"bf16": 835.5, "fp8": 1670.5, "tf32": 417.5, "fp32": 60}, 4.8),
    Accelerator("H200", "H200", 141, {"bf16": 989.4, "fp8": 1978.9, "tf32": 494.7, "fp32": 66.9}, 4.8),
    # NVIDIA H100 data sheet and Hopper whitepaper (table 2: PCIe 756 dense, SXM 989.4 dense)
    Accelerator("H100-PCIe", "H100 PCIe", 80, {"bf16": 756, "fp8": 1513, "tf32": 378, "fp32": 51.2}, 2),
    Accelerator("H100-NVL", "H100 NVL", 94, {"bf16": 835.5, "fp8": 1670.5, "tf32": 417.5, "fp32": 60}, 3.9),
    Accelerator("H100", "H100", 80, {"bf16": 989.4, "fp8": 1978.9, "tf32": 494.7, "fp32": 66.9}, 3.35),
    # NVIDIA A100 data sheet
    Accelerator("A100-80GB", "A100 80GB", 80, {"bf16": 312, "tf32": 156, "fp32": 19.5}, 2.039),
    Accelerator("A100", "A100 40GB", 40, {"bf16": 312, "tf32": 156, "fp32": 19.5}, 1.555),
    # NVIDIA L40S, L40 and L4 data sheets
    Accelerator("L40S", "L40S", 48, {"bf16": 362.05, "fp8": 733, "tf32": 183, "fp32": 91.6}, 0.864),
    Accelerator("L40", "L40", 48, {"bf16": 181.05, "fp8": 362, "tf32": 90.5, "fp32": 90.5}, 0.864),
    Accelerator("L4", "L4", 24, {"bf16": 121, "fp8": 242.5, "tf32": 60, "fp32": 30.3}, 0.3),
    # NVIDIA A10 data sheet; NVIDIA A10G data sheet (AWS): other clocks, half of the A10's tensor throughput
    Accelerator("A10", "A10", 24, {"bf16": 125, "tf32": 62.5, "fp32": 31.2}, 0.6),
    Accelerator("A10G", "A10G", 24, {"bf16": 70, "tf32": 35, "fp32": 35}, 0.6),
    # NVIDIA Ada whitepaper, table 2, and GA102 whitepaper, table 3: with fp32 accumulation, half of that with fp16
    Accelerator("RTX4090", "RTX 4090", 24, {"bf16": 165.2, "fp8": 330.3, "tf32": 82.6, "fp32": 82.6}, 1.008),
    Accelerator("RTX3090", "RTX 3090", 24, {"bf16": 71, "tf32": 35.6, "fp32": 35.6}, 0.936),
    # AMD Instinct MI300X data sheet
    Accelerator("MI300X", "MI300X", 192, {"bf16": 1307.4, "fp8": 2614.9, "tf32": 653.7, "fp32": 163.4}, 5.3),
)
BY_NAME = {accelerator.name: accelerator for accelerator in ACCELERATORS}
ANOTHER_CHIP = {"MIG", "Laptop", "D", "Ti"}  # a slice or another variant, to which these figures do not apply


def accelerator(reported: str) -> Accelerator | None:
    """Return the accelerator with this torch.cuda.get_device_name(); None if it is not in the table."""
    words = set(re.split(r"[ -]", reported))
    if words & ANOTHER_CHIP:
        return None
    return next((known for known in ACCELERATORS if set(known.reported.split()) <= words), None)
