"""Rename and split Megatron's weights into Hugging Face's, with an account of every tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tasks.convert import qwen3
from tasks.job import StageError
from tasks.pretrain.model_spec import ModelSpec


@dataclass(frozen=True)
class Entry:
    """One line of the account: where a target tensor came from."""

    target: str
    sources: list[str]
    shape: list[int]
    dtype: str


def convert(source: Mapping[str, Tensor], model: ModelSpec, dtype: str) -> tuple[dict[str, Tensor], list[Entry]]:
    """Hugging Face's state dict, and the account of it (stored as `dtype`). Raises StageError on a tensor
    that has no place in the map, on two that want the same place, and on elements lost or gained."""
    converted: dict[str, Tensor] = {}
    account = []
    for name, weight in source.items():
        found = qwen3.targets(name)
        if found is None:
            raise StageError(f"weight {name} {list(weight.shape)} has no place in the map tasks/convert/qwen3.py")
        split, names = found
        parts = split(weight, model)
        if len(parts) != len(names) or sum(part.numel() for part in parts) != weight.numel():
            raise StageError(f"weight {name} {list(weight.shape)} does not split into {', '.join(names)}")
        for target, part in zip(names, parts, strict=True):
            if target in converted:
                raise StageError(f"weight {name} maps to {target}, which is taken")
            converted[target] = part.contiguous()
            account.append(Entry(target, [name], list(part.shape), dtype))
    return converted, account
