"""Rename and split Megatron's weights into Hugging Face's, with an account of every tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tasks.convert import qwen3
from tasks.job import StageError
from tasks.pretrain.spec import ModelSpec


@dataclass(frozen=True)
class Entry:
    """One line of the account: what became of one source tensor."""

    source: str
    source_shape: list[int]
    targets: list[str]
    target_shapes: list[list[int]]


def convert(source: Mapping[str, Tensor], model: ModelSpec) -> tuple[dict[str, Tensor], list[Entry]]:
    """Hugging Face's state dict, and the account. Raises StageError on a tensor that has no place in
    the map, on two that want the same place, and on elements lost or gained."""
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
        account.append(Entry(name, list(weight.shape), list(names), [list(part.shape) for part in parts]))
    return converted, account
