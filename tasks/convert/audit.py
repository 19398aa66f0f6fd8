"""Check that a Megatron checkpoint and a Hugging Face folder, as stored on disk, are the same model.

The audit compares, in bounded memory, the configs field by field; the weights bit by bit; the other files
(audit_files.py); and the hidden states after each layer and the logits, computed from Megatron's tensors by
megatron_forward.py and from the folder by transformers (hf_forward.py). The verdict lists the parts that cannot be
compared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from baton.tasks.convert.audit_files import compare_files, free_fields
from baton.tasks.convert.config import FREE
from baton.tasks.convert.files import raw
from baton.tasks.convert.hf_forward import Reference
from baton.tasks.convert.import_model import HuggingFaceModel
from baton.tasks.convert.mapping import Weight
from baton.tasks.convert.megatron_forward import Decoder
from baton.tasks.convert.megatron_model import PADDED, MegatronModel, join_problems
from baton.tasks.convert.transfer import Entry, blocks, entry, map_weights

Progress = Callable[[str, int, int], None]  # phase, done, total


@dataclass(frozen=True)
class FieldDifference:
    """A field of config.json that differs."""

    field: str
    megatron: Any
    hugging_face: Any


@dataclass(frozen=True)
class WeightDifference:
    """A Hugging Face tensor that differs from the Megatron weight rounded to the tensor's type."""

    name: str
    megatron: str
    different: int  # elements
    elements: int
    max_abs_diff: float


@dataclass(frozen=True)
class Audit:
    """The compared parts of both models, and all differences."""

    parameters: int
    weights: list[Entry]
    padding_rows: int  # rows of Megatron's embedding beyond the vocabulary
    dropped: list[str]  # Hugging Face tensors that repeat others
    config_differences: list[FieldDifference]
    weight_differences: list[WeightDifference]
    file_differences: list[str]  # model.json, the tokenizer and all other files
    not_compared: list[str]  # parts that only one side describes
    tokens: int  # number of tokens that both models ran on
    layer_max_abs_diff: list[float]  # difference of the hidden state after each layer
    logits_max_abs_diff: float
    logits_mean_abs_diff: float
    argmax_agreement: float  # fraction of positions with the same most likely token
    bound: float  # allowed logits_max_abs_diff

    def problems(self) -> list[str]:
        """Return the reasons why these are not the same model; empty if they are."""
        problems = [
            f"config.json: {item.field} is {item.hugging_face!r}, but {item.megatron!r} in the checkpoint"
            for item in self.config_differences
        ]
        problems += [
            f"{item.name}: {item.different} of {item.elements} elements differ from {item.megatron} (largest "
            f"difference {item.max_abs_diff:.3g})"
            for item in self.weight_differences
        ]
        problems += self.file_differences
        # NaN fails this comparison
        if not (self.logits_max_abs_diff <= self.bound and self.argmax_agreement == 1.0):
            problems.append(
                f"on {self.tokens} tokens the logits differ by up to {self.logits_max_abs_diff:.3g} (allowed "
                f"{self.bound:.3g}), and the most likely token agrees on {self.argmax_agreement:.2%} (100 % required)"
            )
        return problems

    def verdict(self) -> str:
        """Return the result in one sentence."""
        if problems := self.problems():
            return f"not the same model: {join_problems(problems)}"
        skipped = ", ".join(self.not_compared)
        return (
            f"the same model: {len(self.weights)} weights, {self.parameters} parameters, all equal; on {self.tokens} "
            f"tokens the logits differ by at most {self.logits_max_abs_diff:.2g}; "
            + (f"not compared: {skipped}" if skipped else "the other files are the same")
        )


@torch.no_grad()
def audit(
    megatron: MegatronModel,
    hf: HuggingFaceModel,
    tokens: Tensor,
    bound: float,
    progress: Progress,
    tokenizer: Path | None = None,
) -> Audit:
    """Compare two opened models, and run them on `tokens`, (sequences, length). `tokenizer`: the folder that was passed
    to the export, if any. Raises ConversionError if a model cannot be read."""
    entries, differences = _weights(megatron, hf, progress)
    files = compare_files(megatron, hf, tokenizer, entries)
    _, unknown = free_fields(megatron, hf)
    layers, largest, mean, agreed = _forward(megatron, hf, tokens, progress)
    rows = {key: megatron.checkpoint.tensors[name].shape[0] for key, name in megatron.keys.items() if key in PADDED}
    padding = max(rows[weight.key] - weight.shape[0] for weight in megatron.weights if weight.key in PADDED)
    return Audit(
        parameters=sum(weight.elements for weight in megatron.weights),
        weights=entries,
        padding_rows=padding,
        dropped=hf.dropped,
        config_differences=_fields(megatron, hf),
        weight_differences=differences,
        file_differences=files.differences,
        not_compared=[f"config.json's {name} (not in the checkpoint)" for name in unknown] + files.not_compared,
        tokens=tokens.numel(),
        layer_max_abs_diff=layers,
        logits_max_abs_diff=largest,
        logits_mean_abs_diff=mean,
        argmax_agreement=agreed,
        bound=bound,
    )


def _fields(megatron: MegatronModel, hf: HuggingFaceModel) -> list[FieldDifference]:
    left, right = megatron.fields, hf.fields
    compared, _ = free_fields(megatron, hf)
    names = sorted(((left.keys() | right.keys()) - FREE) | set(compared))
    return [
        FieldDifference(name, left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)
    ]


def _weights(
    megatron: MegatronModel, hf: HuggingFaceModel, progress: Progress
) -> tuple[list[Entry], list[WeightDifference]]:
    differences: list[WeightDifference] = []

    def compared(weight: Weight) -> Entry:
        entry, weight_differences = _compare(megatron, hf, weight)
        differences.extend(weight_differences)
        return entry

    shared = [weight for weight in megatron.weights if all(name in hf.files.tensors for name, _ in weight.parts)]
    entries = map_weights(compared, shared, lambda weight: weight.elements, partial(progress, "weights"))
    return entries, sorted(differences, key=lambda difference: difference.name)


def _compare(megatron: MegatronModel, hf: HuggingFaceModel, weight: Weight) -> tuple[Entry, list[WeightDifference]]:
    """Compare one weight with its parts, block by block."""
    dtypes = {hf.files.tensors[name].dtype for name, _ in weight.parts}
    dtype = dtypes.pop()
    full_hash, digests = blake3(), [blake3() for _ in weight.parts]
    wrong, largest = [0] * len(weight.parts), [0.0] * len(weight.parts)
    source_dtype = dtype
    for start, stop, pieces in blocks(weight, dtype.itemsize):
        rows = megatron.checkpoint.rows(megatron.keys[weight.key], weight.index, start, stop)
        source_dtype = rows.dtype
        full_hash.update(raw(rows))
        rows = rows.to(dtype)
        for piece in pieces:
            expected = rows[piece.start : piece.stop]
            actual = torch.empty_like(expected)
            hf.files.rows_into(weight.parts[piece.part][0], piece.row, actual)
            digests[piece.part].update(raw(actual))
            if raw(expected) != raw(actual):
                wrong[piece.part] += int((_elements(expected) != _elements(actual)).any(1).sum())
                difference = float((expected.double() - actual.double()).abs().nan_to_num(float("inf")).max())
                largest[piece.part] = max(largest[piece.part], difference)
    differences = [
        WeightDifference(name, weight.name, wrong[part], _count(shape), largest[part])
        for part, (name, shape) in enumerate(weight.parts)
        if wrong[part]
    ]
    return entry(weight, str(source_dtype), full_hash, str(dtype), digests), differences


def _elements(rows: Tensor) -> Tensor:
    """Return each element's bytes, so that equal NaNs compare equal."""
    return rows.reshape(-1, 1).view(torch.uint8)


def _count(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _forward(
    megatron: MegatronModel, hf: HuggingFaceModel, tokens: Tensor, progress: Progress
) -> tuple[list[float], float, float, float]:
    """Run both models on the same tokens. Return the largest difference after each layer, the logits' largest and mean
    difference, and the fraction of positions with the same most likely token."""
    names = {(weight.rule, weight.layer, weight.expert): weight for weight in megatron.weights}

    def read(rule: str, layer: int | None, expert: int | None) -> Tensor:
        """Return a weight rounded to Hugging Face's type, as it is exported."""
        weight = names[rule, layer, expert]
        rows = megatron.checkpoint.rows(megatron.keys[weight.key], weight.index, 0, weight.shape[0])
        return rows.to(hf.files.tensors[weight.parts[0][0]].dtype)

    decoder, reference = Decoder(megatron.architecture, read), Reference(hf.folder)
    count = megatron.architecture.layers
    hidden, hf_hidden = decoder.embed(tokens), reference.embed(tokens)
    layers = []
    for number in range(count):
        hidden, hf_hidden = decoder.layer(number, hidden), reference.layer(number, hf_hidden)
        layers.append(_largest(hidden - hf_hidden))
        progress("layers", number + 1, count + 1)
    largest, total, agreed, elements = 0.0, 0.0, 0, 0
    for left, right in zip(hidden.split(1), hf_hidden.split(1), strict=True):  # one sequence at a time, to bound memory
        a, b = decoder.logits(left), reference.logits(right)
        largest = max(largest, _largest(a - b))
        total += float((a - b).abs().sum(dtype=torch.float64))
        elements += a.numel()
        agreed += int((a.argmax(-1) == b.argmax(-1)).sum())
    progress("layers", count + 1, count + 1)
    return layers, largest, total / elements, agreed / tokens.numel()


def _largest(difference: Tensor) -> float:
    """Return the largest |difference|, or infinity if any is NaN, so that it exceeds every bound."""
    return float(difference.abs().nan_to_num(float("inf"), float("inf")).max())
