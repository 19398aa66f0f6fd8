"""A custom stage: the weighted average of models with the same shape, such as fine-tunings of one model with
different data or seeds ("model soups", Wortsman et al. 2022, arXiv:2203.05482)."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field, FiniteFloat
from safetensors import safe_open
from safetensors.torch import save_file

# fields of config.json that change nothing in what is computed
DESCRIPTIONS = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")


class MergeSpec(BaseModel, extra="forbid"):
    weights: list[FiniteFloat] | None = Field(
        None, description="One for each input, in their order, divided by their sum (as in mergekit); null: equal ones"
    )


def merge(spec: MergeSpec, inputs: dict[str, Path], output: Path, job: Any) -> None:
    weights = normalized([1.0] * len(inputs) if spec.weights is None else spec.weights, len(inputs))
    if spec.weights and not math.isclose(sum(spec.weights), 1):
        job.notice(f"the weights {spec.weights} are divided by their sum: {[round(weight, 4) for weight in weights]}")
    places = {name: tensors_in(folder) for name, folder in inputs.items()}
    first, *others = places
    if not places[first] or any(places[other].keys() != places[first].keys() for other in others):
        raise ValueError("these models do not have the same tensors; of adapters, set adapter.output to merged")
    if other := next((name for name in others if configured(inputs[name]) != configured(inputs[first])), None):
        own, its = configured(inputs[first]), configured(inputs[other])
        odd = [
            f"{name} {own.get(name)!r}, {its.get(name)!r}" for name in {**own, **its} if own.get(name) != its.get(name)
        ]
        raise ValueError(f"{first} and {other} compute in different ways ({'; '.join(odd[:5])}), so have no average")
    for name in ("config.json", "model.safetensors.index.json"):  # Baton adds the tokenizer, chat template and stops
        if (inputs[first] / name).exists():
            shutil.copy(inputs[first] / name, output)
    files = sorted(set(places[first].values()))
    for done, file in enumerate(files):
        job.progress(done, len(files), "files")
        names = [name for name, place in places[first].items() if place == file]
        merged = {name: average([read(places[each][name], name) for each in places], weights) for name in names}
        save_file(merged, output / file.name, metadata={"format": "pt"})


def configured(folder: Path) -> dict[str, Any]:
    """The fields of a model's config that say what is computed with its weights."""
    config = json.loads((folder / "config.json").read_text())
    return {
        name: value for name, value in config.items() if name not in DESCRIPTIONS and not name.endswith("_token_id")
    }


def normalized(weights: list[float], count: int) -> list[float]:
    """The weights divided by their sum: any other sum would scale every tensor, norms too. Raises ValueError."""
    if len(weights) != count:
        raise ValueError(f"{len(weights)} weights for {count} inputs")
    total = math.fsum(weights)
    if not 1e-6 < total < math.inf:
        raise ValueError(f"the weights {weights} add up to {total:g}: give weights with a sum above 0, such as 1")
    return weights if math.isclose(total, 1) else [weight / total for weight in weights]


def average(tensors: list[torch.Tensor], weights: list[float]) -> torch.Tensor:
    if len({tensor.shape for tensor in tensors}) > 1:
        raise ValueError(f"tensors of the shapes {[*map(list, (tensor.shape for tensor in tensors))]} have no average")
    total = sum(weight * tensor.float() for weight, tensor in zip(weights, tensors, strict=True))
    return torch.as_tensor(total).to(tensors[0].dtype)


def tensors_in(folder: Path) -> dict[str, Path]:
    """The file of each tensor."""
    files = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            files |= dict.fromkeys(file.keys(), path)
    return files


def read(path: Path, name: str) -> torch.Tensor:
    with safe_open(path, "pt") as file:
        return file.get_tensor(name)
