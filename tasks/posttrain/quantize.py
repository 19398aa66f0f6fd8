"""Load the frozen base of an adapter in 4 bits, for QLoRA (Dettmers et al. 2023) with bitsandbytes.

The 4-bit weights are used only in matrix products. Merging and vLLM use the original weights from the model's files,
since a merged weight that is quantized again loses most of the update.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import BitsAndBytesConfig

from baton.tasks.models.hf_files import tensors_in
from baton.tasks.models.model_files import load_causal_lm


def load_in_4_bits(path: Path, dtype: torch.dtype, products: torch.dtype, dropout: bool = True) -> Any:
    """Load a model with its linear layers, except the LM head, in NF4 with double quantization, and the other weights
    in `dtype`; matrix products are in `products`."""
    device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=products
    )
    model = load_causal_lm(path, dropout, dtype=dtype, quantization_config=config, device_map={"": device})
    for module in model.modules():
        # On CPUs with AVX512-BF16, bitsandbytes 0.50 would pack the weights in a forward pass in evaluation mode, which
        # makes all later products less exact
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def in_4_bits(weight: torch.Tensor) -> bool:
    return hasattr(weight, "quant_state")


def original_weights(path: Path) -> Callable[[str], torch.Tensor]:
    """Return a function that reads a weight of a Hugging Face directory by its name."""
    tensors = tensors_in(path)

    def read(name: str) -> torch.Tensor:
        with safe_open(path / tensors[name].file.name, "pt") as weights:
            tensor: torch.Tensor = weights.get_tensor(name)
        return tensor

    return read
