"""Let Megatron-Core run without a GPU. Call `install()` before megatron.core is imported.

Megatron-Core (0.16 and 0.19) hard-codes CUDA in many places. This import hook rewrites them in megatron.core's source
as it is loaded, in this process only. Outside of megatron.core it patches only two torch.cuda RNG functions that
Megatron calls. (Patching torch.zeros or torch.arange instead would silently break the rotary frequencies of a Hugging
Face model in the same process.) It can be removed when Megatron-Core uses torch's accelerator API.
"""

import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any

import torch

_REWRITES = [
    (re.compile(r"torch\.cuda\.current_device\(\)"), "torch.get_default_device()"),
    (re.compile(r"device=(['\"])cuda\1"), "device='cpu'"),
    (re.compile(r"torch\.cuda\.synchronize\(\)"), "None"),
    (re.compile(r"torch\.cuda\.empty_cache\(\)"), "None"),
    (re.compile(r"\.cuda\((torch\.get_default_device\(\)|non_blocking=True)?\)"), ".cpu()"),
    (re.compile(r"torch\.cuda\.(Stream|current_stream)\(\)"), "None"),
    (re.compile(r"pin_memory=True"), "pin_memory=False"),
    (re.compile(r"(['\"])torch\.cuda\.(Float|Half|BFloat16)Tensor\1"), r"'torch.\2Tensor'"),
]


class _CpuLoader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        # Always compile the source, since a cached .pyc would have the CUDA calls
        source = self.get_data(self.path).decode()
        for pattern, replacement in _REWRITES:
            source = pattern.sub(replacement, source)
        return compile(source, self.path, "exec", dont_inherit=True)


class _CpuFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("megatron.core"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _CpuLoader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Let `import megatron.core` load a Megatron that runs on the CPU."""
    if any(isinstance(finder, _CpuFinder) for finder in sys.meta_path):
        return
    if "megatron.core" in sys.modules:
        raise RuntimeError("megatron.core was imported before megatron_on_cpu.install(); swap the two imports")
    sys.meta_path.insert(0, _CpuFinder())

    def get_rng_state(device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def manual_seed(seed: int) -> torch.Generator:
        # torch.manual_seed would call torch.cuda.manual_seed_all
        return torch.default_generator.manual_seed(int(seed))

    torch.cuda.get_rng_state = get_rng_state
    torch.cuda.manual_seed = manual_seed  # type: ignore[assignment]
    from megatron.core.tensor_parallel import random as megatron_random

    megatron_random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = _splits_as_numbers


def _splits_as_numbers(dispatcher: Any, point: str, tokens_per_expert: torch.Tensor | None = None) -> Any:
    """Replace the device-to-host copies on a side stream: the split sizes for all-to-all are already on the host, but
    are needed as NumPy arrays."""
    if point == dispatcher.cuda_dtoh_point:
        for name in ("input_splits", "output_splits", "output_splits_tp"):
            if torch.is_tensor(getattr(dispatcher, name)):
                setattr(dispatcher, name, getattr(dispatcher, name).numpy())
    return tokens_per_expert
