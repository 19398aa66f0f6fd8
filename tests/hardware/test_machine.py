"""Hardware detection from files in the format of the drivers."""

from pathlib import Path

import pytest

from baton.tasks.hardware.machine import _gpus, this_machine

INFORMATION = """\
Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 18
GPU UUID: \t GPU-8c6b0d2e-0000-0000-0000-000000000000
Bus Type: \t PCIe
"""


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    for bus in ("0000:18:00.0", "0000:2a:00.0"):
        (tmp_path / bus).mkdir()
        (tmp_path / bus / "information").write_text(INFORMATION)
    return tmp_path


def test_gpus_are_named_as_torch_names_them(driver: Path) -> None:
    assert _gpus(driver, None) == ("NVIDIA H100 80GB HBM3",) * 2


@pytest.mark.parametrize(("visible", "count"), [("1", 1), ("0,1", 2), ("", 0), ("-1", 0)])
def test_gpus_that_are_hidden_do_not_count(driver: Path, visible: str, count: int) -> None:
    assert len(_gpus(driver, visible)) == count


def test_a_machine_without_the_driver_has_no_gpus(tmp_path: Path) -> None:
    assert _gpus(tmp_path / "nothing", None) == ()


def test_this_machine_has_memory() -> None:
    assert this_machine().memory_bytes > 2**30
