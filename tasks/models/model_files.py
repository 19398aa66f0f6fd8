"""Load a Hugging Face directory in Transformers, and write one like it."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from baton.tasks.core.job import StageError
from baton.tasks.models.hf_files import listing, tensors_in
from baton.tasks.models.tensors import finite

SMALL = (".json", ".jinja", ".txt", ".model")  # config, generation config, tokenizer, chat template
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def load_causal_lm(directory: Path, dropout: bool = True, **options: Any) -> Any:
    """Load the model in a directory, with or without the dropout of its config. `options` are those of
    `from_pretrained`.

    sdpa, the default implementation of attention in Transformers (5.17), silently ignores a soft cap of the scores
    (Gemma 2's), which vLLM applies. A model with a soft cap is therefore loaded with `eager`. Removable when
    `sdpa_attention_forward` has an argument `softcap`.
    """
    config = json.loads((directory / "config.json").read_text())
    if config.get("attn_logit_softcapping") is not None:
        options |= {"attn_implementation": "eager"}
    if not dropout:
        options["config"] = _without_dropout(AutoConfig.from_pretrained(directory, local_files_only=True))
    return AutoModelForCausalLM.from_pretrained(
        directory, trust_remote_code=False, use_safetensors=True, local_files_only=True, **options
    )


def _without_dropout(config: PretrainedConfig) -> PretrainedConfig:
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def linear_names(model: PreTrainedModel) -> set[str]:
    """Return the last part of the names of a model's linear layers, except its head."""
    head = model.get_output_embeddings()
    modules = model.named_modules()
    return {name.rpartition(".")[2] for name, one in modules if isinstance(one, torch.nn.Linear) and one is not head}


def check_values(model: PreTrainedModel) -> None:
    """Raise StageError if weights are NaN or infinite."""
    odd = [name for name, tensor in model.state_dict().items() if tensor.is_floating_point() and not finite(tensor)]
    if odd:
        raise StageError(f"{listing(odd)} has NaN or infinite values, from which no model can be trained or sampled")


def save_like(model: PreTrainedModel, source: Path, folder: Path) -> None:
    """Write a model's weights, each in the type that it has in `source`, and copy the other files of `source`."""
    common = storage_dtype(source)
    stored = {name: FLOATS.get(tensor.dtype, common) for name, tensor in tensors_in(source).items()}
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(stored.get(name, common))
    given = model.generation_config  # its file is copied, since Transformers does not save all the fields that it reads
    model.generation_config = GenerationConfig(eos_token_id=given.eos_token_id, pad_token_id=given.pad_token_id)
    model.save_pretrained(folder)
    copy_small_files(source, folder)


def as_saved(model: PreTrainedModel, name: str, weight: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a weight under the names and in the parts that `save_pretrained` writes."""
    yield from revert_weight_conversion(model, {name: weight}).items()


def saved_buffers(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the buffers that are in the model's files, such as the bias that selects DeepSeek-V3's experts."""
    saved = model.state_dict().keys()
    return ((name, buffer) for name, buffer in model.named_buffers() if name in saved)


def copy_small_files(source: Path, folder: Path) -> None:
    """Copy everything but the weights, unchanged."""
    for path in source.iterdir():
        about_weights = path.name == "manifest.json" or path.name.endswith(".safetensors.index.json")
        if path.suffix in SMALL and not about_weights:
            shutil.copy(path, folder / path.name)


def storage_dtype(directory: Path) -> torch.dtype:
    """Return the float type of most of the stored weights. Raises StageError if there is none."""
    return FLOATS[_counted(directory).most_common(1)[0][0]]


def is_all(dtype: torch.dtype, directory: Path) -> bool:
    """Return whether every weight is stored in this type."""
    return {FLOATS[name] for name in _counted(directory)} == {dtype}


def _counted(directory: Path) -> Counter[str]:
    """Count the elements of each float type."""
    tensors = list(tensors_in(directory).values())
    counts: Counter[str] = Counter()
    for tensor in tensors:
        counts[tensor.dtype] += prod(tensor.shape) if tensor.dtype in FLOATS else 0
    counts = +counts
    if not counts:
        kinds = ", ".join(sorted({tensor.dtype for tensor in tensors})) or "no type"
        raise StageError(f"{directory}: the weights are in {kinds}; one of {', '.join(FLOATS)} is needed")
    return counts
