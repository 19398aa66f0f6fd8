"""Prove that vLLM samples from exactly the trainer's weights: BLAKE3 digests of named tensors on both sides."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from blake3 import blake3

from tasks.job import StageError
from tasks.serve.tensor_digests import Held, Named, digest

SHOWN = 3  # tensors in a message


@dataclass(frozen=True)
class Compared:
    """What a check compared."""

    tensors: int
    digest: str  # over the names and digests of all of them
    skipped: list[str]  # the trainer's tensors that vLLM has under no such name

    def __str__(self) -> str:
        text = f"vLLM holds the trainer's weights: {self.tensors} tensors, digest {self.digest[:16]}"
        return text + (f"; {_first(self.skipped)} cannot be compared" if self.skipped else "")


def check_weights(trainer: Named, engine: Mapping[str, Held], step: int) -> Compared:
    """Compare the trainer's tensors, rounded to vLLM's dtype, with those of the same names in vLLM. Goes through
    `trainer` completely, since that may be a collective. Raises StageError if any differ or none have the same name."""
    wrong, same, skipped = [], {}, []
    for name, tensor in trainer:
        if (held := engine.get(name)) is None:
            skipped.append(name)
        elif held.digests != [own := digest(tensor.to(getattr(torch, held.dtype)))]:
            wrong.append(name)
        else:
            same[name] = own
    if wrong or not same:
        what = f"{_first(wrong)} differ, {len(same)} tensors are equal" if wrong else "no tensor has the same name"
        raise StageError(
            f"step {step}: vLLM's weights are not the trainer's after their synchronization: {what}. "
            "check_weights_every: null goes on without this check"
        )
    every = blake3("".join(f"{name} {same[name]}\n" for name in sorted(same)).encode()).hexdigest()
    return Compared(len(same), every, skipped)


def _first(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
