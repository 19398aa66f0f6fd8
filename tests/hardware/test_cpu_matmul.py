"""Products in bf16 on a CPU without instructions for them, which a process simulates on any CPU."""

import subprocess
import sys

import pytest

from tests.source import ROOT

PREPARED = """
import torch

torch.ops.mkldnn._is_mkldnn_bf16_supported = lambda: False
from baton.tasks.hardware import cpu_matmul

assert cpu_matmul.prepare() is cpu_matmul.prepare() is not None
torch.manual_seed(0)
a, b, c = (torch.randn(3, *shape) for shape in ((16, 64), (64, 24), (16, 24)))


def expected(dtype, call):
    wide = [each.to(dtype).to(torch.promote_types(dtype, torch.float32)).requires_grad_() for each in (a, b, c)]
    result = call(*wide)
    result.to(dtype).to(result.dtype).square().sum().backward()
    return [result, *(each.grad for each in wide)]


def found(dtype, call):
    narrow = [each.to(dtype).requires_grad_() for each in (a, b, c)]
    result = call(*narrow)
    assert result.dtype == dtype
    result.to(torch.promote_types(dtype, torch.float32)).square().sum().backward()
    return [result, *(each.grad for each in narrow)]


CALLS = {
    "matmul": lambda a, b, c: a[0] @ b[0],
    "batches": lambda a, b, c: a @ b,
    "linear": lambda a, b, c: torch.nn.functional.linear(a, b[0].T, c[0, 0]),
    "addmm": lambda a, b, c: torch.addmm(c[0], a[0], b[0], beta=0.5, alpha=2),
    "baddbmm": lambda a, b, c: torch.baddbmm(c, a, b, beta=0.5),
}
"""


def in_such_a_process(script: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", PREPARED + script], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_products_and_their_gradients_are_those_in_fp32_rounded(dtype: str) -> None:
    in_such_a_process(f"""
for name, call in CALLS.items():
    for one, other in zip(found(torch.{dtype}, call), expected(torch.{dtype}, call), strict=True):
        if one is None:
            assert other is None
        else:
            torch.testing.assert_close(one, other.to(one.dtype), msg=name)
""")


def test_autocast_uses_them_too() -> None:
    in_such_a_process("""
with torch.autocast("cpu", dtype=torch.bfloat16):
    result = a @ b
assert result.dtype == torch.bfloat16
torch.testing.assert_close(result, (a.bfloat16().float() @ b.bfloat16().float()).bfloat16())
""")


def test_empty_factors_have_the_product_s_shape() -> None:
    in_such_a_process("""
empty = torch.empty(2, 0, dtype=torch.bfloat16) @ torch.empty(0, 3, dtype=torch.bfloat16)
assert empty.tolist() == [[0, 0, 0]] * 2
""")
