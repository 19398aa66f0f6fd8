"""The table of accelerators, compared with the specifications of the chips and the names that drivers report."""

import pytest

from baton.tasks.hardware.accelerators import ACCELERATORS, BY_NAME, Accelerator, accelerator

# name: (multiprocessors, dense bf16 FLOPs of one per clock cycle, boost clock in GHz), where the manufacturers publish
# them
CHIPS = {
    "GH200": (132, 4096, 1.83),
    "H200": (132, 4096, 1.83),
    "H100": (132, 4096, 1.83),
    "H100-PCIe": (114, 4096, 1.62),
    "A100": (108, 2048, 1.41),
    "A100-80GB": (108, 2048, 1.41),
    "L40S": (142, 1024, 2.52),
    "L40": (142, 512, 2.49),
    "L4": (58, 1024, 2.04),
    "A10": (72, 1024, 1.695),
    "A10G": (80, 512, 1.71),
    "RTX4090": (128, 512, 2.52),
    "RTX3090": (82, 512, 1.695),
    "MI300X": (304, 2048, 2.1),
}
each = pytest.mark.parametrize("chip", ACCELERATORS, ids=lambda chip: chip.name)


@pytest.mark.parametrize("name", CHIPS)
def test_the_peak_is_what_the_chip_can_do_in_a_second(name: str) -> None:
    multiprocessors, flops_per_clock, gigahertz = CHIPS[name]
    assert BY_NAME[name].tflops["bf16"] == pytest.approx(multiprocessors * flops_per_clock * gigahertz / 1e3, rel=0.015)


@each
def test_half_the_bits_are_twice_as_fast(chip: Accelerator) -> None:
    assert chip.tflops["bf16"] == pytest.approx(2 * chip.tflops["tf32"], rel=0.02)
    if "fp8" in chip.tflops:
        assert chip.tflops["fp8"] == pytest.approx(2 * chip.tflops["bf16"], rel=0.02)
    assert chip.tflops["fp32"] <= chip.tflops["tf32"]


@pytest.mark.parametrize(
    ("name", "tflops", "memory_gb"),
    # dense FLOPs, as in papers that report MFU: PaLM and Llama 2 (A100), Llama 3 (H100), MLPerf
    [("A100-80GB", 312, 80), ("H100", 989.4, 80), ("H200", 989.4, 141), ("B200", 2250, 180)],
)
def test_the_figures_that_everyone_quotes(name: str, tflops: float, memory_gb: float) -> None:
    assert BY_NAME[name].peak("bf16") == tflops * 1e12
    assert BY_NAME[name].memory_gb == memory_gb


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("A100-SXM4-40GB", "A100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 3090", "RTX3090"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_a_device_is_known_by_the_name_it_reports(reported: str, name: str) -> None:
    assert accelerator(reported) is BY_NAME[name]


@pytest.mark.parametrize(
    "reported",
    [
        "Tesla V100-SXM2-16GB",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
    ],
)
def test_a_part_or_a_lesser_variant_is_not_taken_for_the_chip(reported: str) -> None:
    assert accelerator(reported) is None


@each
def test_no_accelerator_hides_one_that_comes_after_it(chip: Accelerator) -> None:
    assert accelerator(chip.reported) is chip


def test_there_is_no_peak_for_arithmetic_that_a_chip_has_not() -> None:
    assert BY_NAME["A100"].peak("fp8") is None
