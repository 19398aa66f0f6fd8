"""The files of a Hugging Face directory beside its weights, and the dtype of those."""

import shutil
from pathlib import Path

import torch
from safetensors import safe_open

from tasks.job import StageError

SMALL = (".json", ".jinja", ".txt", ".model")  # config, generation config, tokenizer, chat template


def copy_small_files(source: Path, folder: Path) -> None:
    """Copy everything but the weights, unchanged."""
    for path in source.iterdir():
        about_weights = path.name == "manifest.json" or path.name.endswith(".safetensors.index.json")
        if path.suffix in SMALL and not about_weights:
            shutil.copy(path, folder / path.name)


def storage_dtype(directory: Path) -> torch.dtype:
    """The dtype of the weights on disk. Raises StageError if it is not a single float type."""
    names = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    with safe_open(min(directory.glob("*.safetensors")), "pt") as weights:
        found = {weights.get_slice(key).get_dtype() for key in weights.keys()}  # noqa: SIM118 (not a dict)
    if len(found) != 1 or not found <= names.keys():
        raise StageError(
            f"{directory}: the weights are in {', '.join(sorted(found))}; exactly one of {', '.join(names)} is allowed"
        )
    return names[found.pop()]
