"""Matrix products in bf16 on CPUs that have no instructions for it (x86-64 without AVX-512).

oneDNN, which computes torch's products in bf16, refuses such CPUs, and torch's own loop takes 10 to 40 times as long as
a product in fp32. Here the factors are converted to fp32, and the product is rounded to bf16 once. The instructions for
bf16 also accumulate in fp32. To be removed when torch does so itself.
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
    """Replace torch's products where they are slow. Returns the library of the replacements, which lives until the
    process ends, or None if nothing needs to be replaced."""
    if torch.cuda.is_available() or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warning that an operation is replaced
        for name in OPERATIONS:
            library.impl(name, _by_fp32(getattr(torch.ops.aten, name).out), "CPU")
    return library


def _by_fp32(into: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the replacement of an operation. `into` is the form of the operation that writes its result into a tensor
    and is not replaced."""

    def product(*tensors: Tensor, **factors: Any) -> Tensor:
        if tensors[-1].dtype is not torch.bfloat16:
            return into(*tensors, **factors, out=tensors[-1].new_empty(0))
        wide = into(*(tensor.float() for tensor in tensors), **factors, out=torch.empty(0))
        return wide.to(torch.bfloat16)

    return product
