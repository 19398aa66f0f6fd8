"""Matrix products in bf16 on CPUs that have no instructions for it (x86-64 without AVX-512).

oneDNN, which computes torch's products in bf16, refuses such CPUs, and torch's own loop takes 10 to 40 times as long as
a product in fp32. Here the factors are converted to fp32, and the product, which is accumulated in fp32 with those
instructions too, is rounded to bf16 once. To be removed when torch does so itself.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

OPERATIONS = ("mm", "bmm", "addmm", "baddbmm")


@cache
def prepare() -> torch.library.Library | None:
    """Replace torch's products where they are slow. The library that is returned must live as long as they are used: it
    lives until the process ends. None: nothing needs to be replaced."""
    if torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that an operation is replaced
        for name in OPERATIONS:
            library.impl(name, _by_fp32(getattr(torch.ops.aten, name).out), "CPU")
    return library


def _by_fp32(into: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`into`: the operation's form that writes its result into a tensor, which is not replaced."""

    def product(*tensors: Tensor, **factors: Any) -> Tensor:
        if tensors[-1].dtype is not torch.bfloat16:
            return into(*tensors, **factors, out=tensors[-1].new_empty(0))
        wide = into(*(tensor.float() for tensor in tensors), **factors, out=torch.empty(0))
        return wide.to(torch.bfloat16)

    return product
