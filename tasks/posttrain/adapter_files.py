"""Write an adapter as an artifact in PEFT's format, and read one as the model to tune further.

A stage that tunes an adapter's model trains a new adapter on the merged weights. The two are then joined to one adapter
of the original base, whose rank is the sum of their ranks: B₁A₁ + B₂A₂ = [B₁ B₂] [A₁; A₂].
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file

from baton.infra.storage.cached_folder import cached_folder
from baton.infra.storage.durable import remove, write_json
from baton.tasks.core.job import Job
from baton.tasks.models.adapter_base import ADAPTER, BASE, ModelFolders, model_of
from baton.tasks.models.model_files import copy_small_files, load_causal_lm, save_like
from baton.tasks.posttrain.adapter import merged
from baton.tasks.posttrain.adapter_spec import LoRASpec

SOURCE = "source"  # folder in work/
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def source_of(job: Job) -> Path:
    """Return the directory with the weights of the stage's model. An adapter is first merged into its base, in
    work/source and in the base's dtype."""
    model = model_of(job)
    if model.adapter is None:
        return model.directory
    return cached_folder(job.work / SOURCE, lambda _: "", partial(_write_merged, model, model.adapter))


def _write_merged(model: ModelFolders, adapter: Path, folder: Path) -> None:
    base = load_causal_lm(model.weights, dtype=torch.float32)
    save_like(merged(PeftModel.from_pretrained(base, adapter)), model.weights, folder)
    copy_small_files(model.directory, folder)


def base_of(job: Job) -> dict[str, str]:
    """Return the base of an adapter that the stage trains: its model, or that model's base."""
    entry = job.inputs.get(f"model.{BASE}") or job.inputs["model"]
    return {"digest": entry["digest"], "place": entry.get("place") or entry["path"]}


def forget_source(job: Job) -> None:
    """Delete the merged weights of `source_of`."""
    remove(job.work / SOURCE)


def write_adapter(job: Job, lora: LoRASpec, trained: Mapping[str, torch.Tensor]) -> None:
    """Write an adapter in fp32 to output/adapter: the trained one, joined to the adapter of the stage's model if it has
    one.
    `trained`: weights by PEFT's names in the model."""
    weights = {name.replace(".default.", "."): weight.float().contiguous() for name, weight in trained.items()}
    rank, alpha = lora.rank, lora.alpha
    before = Path(job.inputs["model"]["path"]) / ADAPTER
    if before.is_dir():
        config = json.loads((before / CONFIG).read_text())
        weights, rank = joined((load_file(before / WEIGHTS), config["r"], config["lora_alpha"]), (weights, rank, alpha))
        alpha = float(rank)
    config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=alpha, inference_mode=True).to_dict()  # type: ignore[arg-type]
    config |= {
        "base_model_name_or_path": base_of(job)["digest"],
        "target_modules": sorted({name.split(".")[-3] for name in weights}),
    }
    del config["peft_version"]  # the artifact's digest must not depend on it
    folder = job.output / ADAPTER
    folder.mkdir(parents=True)
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    write_json(folder / CONFIG, config)


Adapter = tuple[dict[str, torch.Tensor], int, float]  # weights by PEFT's names, rank, alpha


def joined(first: Adapter, second: Adapter) -> tuple[dict[str, torch.Tensor], int]:
    """Return (weights, rank) of the adapter whose update is the sum of both and whose alpha equals its rank. A layer
    that only one of them adapts is padded with zeros, since vLLM requires one rank."""
    rank = first[1] + second[1]
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(first[0].keys() | second[0].keys()):
        of_b = ".lora_B." in name
        parts = []
        for weights, own_rank, alpha in (first, second):
            like = weights.get(name)
            if like is None:
                other = (first if weights is second[0] else second)[0][name]
                like = other.new_zeros((len(other), own_rank) if of_b else (own_rank, other.shape[1]))
            parts.append(like.float() * (alpha / own_rank if of_b else 1))
        tensors[name] = torch.cat(parts, dim=1 if of_b else 0).contiguous()
    return tensors, rank
