"""Open a Megatron model: a dist_checkpoint and a Hugging Face config that describes it.

    FOLDER/checkpoint/      the dist_checkpoint
    FOLDER/model.json       the model's spec, if Baton trained it
    FOLDER/huggingface/     config.json and the other files, if it was imported from Hugging Face

For a checkpoint that was made elsewhere, the config must be given.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.families import family_of, read
from baton.tasks.convert.from_spec import config_fields
from baton.tasks.convert.hf_forward import check_runs
from baton.tasks.convert.mapping import Weight, check_total_size, weights
from baton.tasks.convert.torch_dist import METADATA, Checkpoint
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.fields import check_types, read_json, shown
from baton.tasks.models.hf_files import HUGGINGFACE
from baton.tasks.models.model_spec import ModelSpec

CHECKPOINT = "checkpoint"
LATEST = "latest_checkpointed_iteration.txt"  # written by Megatron-LM
PADDED = ("embedding.word_embeddings.weight", "output_layer.weight")  # may have more rows than the vocabulary
# Names of the same weight in Megatron's local layers and in Transformer Engine's
ALIASES = {
    "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
    "pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
    "self_attention.linear_q_up_proj.layer_norm_weight": "self_attention.q_layernorm.weight",
    "self_attention.linear_kv_up_proj.layer_norm_weight": "self_attention.kv_layernorm.weight",
}


@dataclass(frozen=True)
class MegatronModel:
    """An opened and checked model: every weight exists with its shape, and there are no others."""

    folder: Path
    fields: dict[str, Any]  # config.json
    architecture: Architecture
    checkpoint: Checkpoint
    weights: list[Weight]
    keys: dict[str, str]  # a weight's key → its name in this checkpoint
    beside: Path | None  # folder with the Hugging Face files other than weights

    @property
    def imported(self) -> bool:
        """Return whether the model was imported from Hugging Face, so that the other files are unchanged."""
        return self.beside == self.folder / HUGGINGFACE

    def dtypes(self) -> dict[str, torch.dtype]:
        """Return the type in which each weight is stored, by the weight's name."""
        return {weight.name: self.checkpoint.tensors[self.keys[weight.key]].dtype for weight in self.weights}


def open_megatron(folder: Path, config: Path | None = None) -> MegatronModel:
    """Open a checkpoint. `config`: a config.json, or a folder with one, for a checkpoint that was made elsewhere.
    Raises ConversionError."""
    where = _checkpoint(folder)
    fields, beside = _described(folder, config)
    architecture = read(fields)
    checkpoint = Checkpoint(where)
    # Megatron writes layer by layer for models whose layers may differ
    stacked = not any(name.startswith("decoder.layers.0.") for name in checkpoint.tensors)
    check_total_size(architecture, sum(prod(tensor.shape) for tensor in checkpoint.tensors.values()))
    needed = list(weights(family_of(fields).table, architecture, stacked))
    keys = _matched(checkpoint, needed)
    if config or beside:  # a config that Baton did not write
        check_runs(fields)
    return MegatronModel(folder, fields, architecture, checkpoint, needed, keys, beside)


def is_megatron(folder: Path) -> bool:
    """Return whether a folder looks like a Megatron checkpoint."""
    return (folder / LATEST).is_file() or any((place / METADATA).is_file() for place in (folder, folder / CHECKPOINT))


def _checkpoint(folder: Path) -> Path:
    """Return the dist_checkpoint's folder, or the latest one in a Megatron-LM folder with several."""
    if (folder / LATEST).is_file():
        latest = (folder / LATEST).read_text().strip()
        folder = folder / (f"iter_{int(latest):07d}" if latest.isdigit() else latest)
    for candidate in (folder / CHECKPOINT, folder):
        if (candidate / METADATA).is_file():
            return candidate
    raise ConversionError(f"{folder}: neither it nor its {CHECKPOINT}/ is a torch_dist checkpoint (with {METADATA})")


def _described(folder: Path, config: Path | None) -> tuple[dict[str, Any], Path | None]:
    beside = config or folder / HUGGINGFACE
    if beside.exists():
        return full_config(beside), beside if beside.is_dir() else None
    if config:
        raise ConversionError(f"{config}: does not exist; give a config.json, or a folder with one")
    described = folder / "model.json"
    if not described.exists():
        raise ConversionError(
            f"{folder}: has neither model.json (trained by Baton) nor {HUGGINGFACE}/ (imported) to describe the model. "
            f"Give --config FOLDER, with a config.json that describes it"
        )
    about = read_json(described)
    try:
        model, vocab_size = ModelSpec.model_validate(about["model"]), about["vocab_size"]
    except (ValueError, KeyError) as error:
        raise ConversionError(f"{described}: cannot be read ({error})") from error
    problems = model.problems()
    if problems:
        raise ConversionError(f"{described}: {'; '.join(map(str, problems))}")
    if type(vocab_size) is not int or not 1 <= vocab_size <= 10_000_000:
        raise ConversionError(f"{described}: vocab_size is {shown(vocab_size)}; an integer of at least 1 is required")
    return config_fields(model, vocab_size), None


def full_config(place: Path) -> dict[str, Any]:
    """Return a config.json in which transformers has filled in the family's defaults. Raises ConversionError."""
    path = place / "config.json" if place.is_dir() else place
    fields = read_json(path)
    family_of(fields)
    check_types(fields)
    try:
        filled: dict[str, Any] = AutoConfig.for_model(**fields).to_dict()
    except Exception as error:  # transformers' and huggingface_hub's validation raise various types
        raise ConversionError(f"{path}: transformers rejects it ({' '.join(str(error).split())[:500]})") from error
    return filled


def _matched(checkpoint: Checkpoint, needed: list[Weight]) -> dict[str, str]:
    """Return the name of each weight in the checkpoint. Raises ConversionError with all problems."""
    present = checkpoint.weights()
    keys: dict[str, str] = {}
    wrong = []
    for weight in {weight.key: weight for weight in needed}.values():
        names = [weight.key, *(weight.key.replace(a, b) for a, b in ALIASES.items() if weight.key.endswith(a))]
        name = next((name for name in names if name in present), None)
        if name is None:
            wrong.append(f"{weight.key} {list(weight.leading + weight.shape)} is missing")
            continue
        keys[weight.key] = name
        shape, expected = checkpoint.tensors[name].shape, weight.leading + weight.shape
        padded = weight.key in PADDED and shape[1:] == expected[1:] and shape[0] >= expected[0]
        if shape != expected and not padded:
            wrong.append(f"{name} is {list(shape)}; the config says {list(expected)}")
    left = sorted(present - set(keys.values()))
    wrong += [f"{name} {list(checkpoint.tensors[name].shape)} has no place in the model" for name in left]
    if wrong:
        raise ConversionError(f"{checkpoint.folder}: {join_problems(wrong)}")
    return keys


def join_problems(problems: list[str], most: int = 10) -> str:
    """Join the first `most` problems, and the number of the others."""
    more = f"; and {len(problems) - most} more" if len(problems) > most else ""
    return "; ".join(problems[:most]) + more
