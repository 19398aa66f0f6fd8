"""Merge a published adapter into its base, which is beside it (tasks/publish/copy.py), as a model to start from.

The module does not use PEFT, which this stage's image lacks: a plain LoRA adapter is W + alpha / rank · B A. Any other
adapter is refused.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from baton.infra.storage.durable import remove
from baton.tasks.convert.check_model import check_model
from baton.tasks.core.job import StageError
from baton.tasks.models.adapter_base import ADAPTER_CONFIG, BASE, ModelFolders
from baton.tasks.models.hf_files import listing, model_in
from baton.tasks.models.model_files import load_causal_lm, save_like
from baton.tasks.models.turns import copy_turns

WEIGHTS = "adapter_model.safetensors"
# Checks of fields of a plain adapter's config; other fields are empty or false
PLAIN: dict[str, Callable[[Any], bool]] = {
    "peft_type": lambda value: value == "LORA",
    "task_type": lambda value: value == "CAUSAL_LM",
    "r": lambda value: type(value) is int and value > 0,
    "lora_alpha": lambda value: type(value) in (int, float),
    "target_modules": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "bias": lambda value: value == "none",
    "init_lora_weights": lambda value: isinstance(value, bool | None) or value == "gaussian",  # others change the base
}
WITHOUT_EFFECT = (  # fields that don't change the result of a trained adapter
    "auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "megatron_core", "peft_version",
    "qalora_group_size", "revision",
)  # fmt: skip


def merge(folder: Path, target: Path) -> None:
    """Write the model of a published adapter and its base, in the base's type. Raises StageError, ModelFilesError."""
    adapter = ModelFolders(folder, folder / BASE)
    config = adapter.adapter_config()
    given = {name: value for name, value in (dict.fromkeys(PLAIN) | config).items() if name not in WITHOUT_EFFECT}
    if odd := [f"{name} {value!r:.60}" for name, value in given.items() if not PLAIN.get(name, _is_empty)(value)]:
        raise StageError(
            f"{folder / ADAPTER_CONFIG}: {listing(odd)}: only a plain LoRA adapter is merged into its base. Merge this "
            "adapter (PEFT's merge_and_unload, then save_pretrained), and start from the result"
        )
    try:
        tensors = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise StageError(f"{folder / WEIGHTS}: cannot be read ({error})") from error
    check_model(adapter.weights, model_in(adapter.weights))
    model = load_causal_lm(adapter.weights, dtype=torch.float32)
    _add(model, tensors, config, folder / WEIGHTS)
    remove(target)
    save_like(model, adapter.weights, target)
    copy_turns(folder, target)


def _is_empty(value: Any) -> bool:
    return not value


@torch.no_grad()
def _add(model: Any, tensors: dict[str, torch.Tensor], config: dict[str, Any], place: Path) -> None:
    """Add alpha / rank · B A to each adapted weight. Raises StageError unless the tensors are those of every layer that
    the config names."""
    head, targets = model.get_output_embeddings(), config["target_modules"]
    adapted = {
        name: module.weight
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head and name.rpartition(".")[2] in targets
    }
    expected = {f"base_model.model.{name}.lora_{part}.weight" for name in adapted for part in "AB"}
    if odd := sorted(expected ^ tensors.keys()):
        raise StageError(
            f"{place}: {listing(odd)}: its tensors are not those of the layers that {ADAPTER_CONFIG} names"
        )
    scale = config["lora_alpha"] / config["r"]
    for name, weight in adapted.items():
        a, b = (tensors[f"base_model.model.{name}.lora_{part}.weight"].float() for part in "AB")
        if a.shape != (config["r"], weight.shape[1]) or b.shape != (weight.shape[0], config["r"]):
            shapes = f"{list(b.shape)} and {list(a.shape)}"
            raise StageError(f"{place}: the adapter of {name} is {shapes}, which its rank {config['r']} does not allow")
        weight += scale * (b @ a)
