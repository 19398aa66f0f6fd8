"""Prove that vLLM samples from exactly the trainer's weights, by BLAKE3 digests of named tensors on both sides."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from blake3 import blake3

from baton.tasks.core.job import StageError
from baton.tasks.models.hf_files import listing
from baton.tasks.vllm.tensor_digests import SORTED, Held, Named, digest, in_order

SHOWN = 3  # maximum number of tensors in a message
DECODER = "model"  # vLLM's name of every decoder that it runs with Transformers' code, even of GPT-2's `transformer`


@dataclass(frozen=True)
class Compared:
    """Result of a check."""

    tensors: int
    digest: str  # digest over the names and digests of all tensors
    skipped: list[str]  # the trainer's tensors whose names vLLM lacks

    def __str__(self) -> str:
        text = f"vLLM holds the trainer's weights: {self.tensors} tensors, digest {self.digest[:16]}"
        return text + (f"; {listing(self.skipped, SHOWN)} cannot be compared" if self.skipped else "")


def check_weights(trainer: Named, engine: Mapping[str, Held], step: int) -> Compared:
    """Compare the trainer's tensors, rounded to vLLM's dtype, with those of the same names in vLLM, which may be
    transposed (as in GPT-2) or have their rows in another order. Reads `trainer` to the end, since that may be
    collective. Raises StageError if any tensor differs or no tensor has the same name."""
    wrong, same, skipped = [], {}, []
    for name, tensor in trainer:
        engine_name = name if name in engine else f"{DECODER}.{name.partition('.')[2]}"
        if (held := engine.get(engine_name)) is None:
            skipped.append(name)
            continue
        rounded = tensor.to(getattr(torch, held.dtype))
        expected = digest(rounded)
        if held.digests == [expected] or _rearranged(rounded, held, engine.get(engine_name + SORTED)):
            same[name] = expected
        else:
            wrong.append(name)
    if wrong or not same:
        differ = f"{listing(wrong, SHOWN)} differ, {len(same)} tensors are equal"
        what = differ if wrong else "no tensor has the same name"
        raise StageError(
            f"step {step}: vLLM's weights are not the trainer's after their synchronization: {what}. "
            "check_weights_every: null goes on without this check"
        )
    every = blake3("".join(f"{name} {same[name]}\n" for name in sorted(same)).encode()).hexdigest()
    return Compared(len(same), every, skipped)


def _rearranged(tensor: torch.Tensor, held: Held, values: Held | None) -> bool:
    """Return whether vLLM holds the tensor transposed, or with its values in another order."""
    transposed = tensor.ndim == 2 and held.digests == [digest(tensor.t())]
    return transposed or (values is not None and values.digests == [digest(in_order(tensor))])
