"""The parts of a blend: the `.bin/.idx` files that are trained on, their shares, and how often each is repeated.

A data set is one part, or one for each named source of its corpus. Data sets are weighted by `data_weights` (default:
their tokens); the named sources share their data set's weight by `source_weights`, else by `mixture` (default: their
tokens). A part that is in several `.bin/.idx` has the same weight for each of its tokens, so all are read equally
often.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from baton.tasks.core.spec import Spec, not_identity


class SourceShare(Spec):
    """The share of a named source in the training."""

    weight: float | None = Field(None, gt=0, description="relative to the other sources; null for all: size in tokens")
    # Not part of the identity, since it decides only between an error and the same result
    epochs: float | None = not_identity(None, "maximum number of epochs over it; null: no limit", gt=0)


@dataclass(frozen=True)
class BlendEntry:
    """A data set of a blend, or a named source in it."""

    prefixes: Mapping[Path, int]  # paths of its `.bin/.idx`, without suffix, and their tokens
    weight: float
    share: float  # fraction of all training tokens
    tokens: int
    source: str | None = None
    most_epochs: float | None = None

    def blend(self) -> list[tuple[Path, float]]:
        """Return the weight of each `.bin/.idx`."""
        return [(prefix, self.weight * (tokens / self.tokens)) for prefix, tokens in self.prefixes.items()]

    def epochs(self, trained_tokens: float) -> float:
        """Return how often a training on `trained_tokens` tokens in all reads the part."""
        return self.share * trained_tokens / self.tokens

    def too_many_epochs(self, trained_tokens: float) -> str:
        """Return a message if the part's limit is exceeded, or "" if not."""
        if self.most_epochs is None or self.epochs(trained_tokens) <= self.most_epochs * (1 + 1e-9):
            return ""
        return (
            f"corpus.sources.{self.source}: its share, {self.share:.1%} of {trained_tokens:,.0f} training tokens, is "
            f"{self.epochs(trained_tokens):.3g} epochs of its {self.tokens:,} tokens, and epochs allows "
            f"{self.most_epochs:g}. Lower its weight or pretrain.steps, raise epochs, or add text"
        )


def parts_of(
    data: Mapping[Path, Mapping[str, Any]],
    weights: list[float],
    mixture: Mapping[str, SourceShare],
    source_weights: Sequence[Mapping[str, float]] = (),
) -> list[BlendEntry]:
    """Return the parts of data sets (folder: facts) with these weights. Parts without weight or tokens are left out."""
    total, parts = sum(weights), []
    within: Sequence[Mapping[str, float] | None] = source_weights or [None] * len(weights)
    for (folder, facts), weight, given in zip(data.items(), weights, within, strict=True):
        sources: Mapping[str, int] = facts.get("sources") or {}
        if not weight:
            continue
        if not sources:
            prefixes = _prefixes(folder, facts, "train", facts["tokens"])
            parts.append(BlendEntry(prefixes, weight, weight / total, facts["tokens"]))
            continue
        shares = {name: mixture.get(name, SourceShare()) for name in sources}
        expected = (
            dict(given) if given else {name: shares[name].weight or float(tokens) for name, tokens in sources.items()}
        )
        expected = {name: expected[name] for name, tokens in sources.items() if tokens and expected.get(name)}
        for name, expected_weight in expected.items():
            part_weight = weight * expected_weight / sum(expected.values())
            prefixes = _prefixes(folder, facts, f"train-{name}", sources[name])
            parts.append(
                BlendEntry(prefixes, part_weight, part_weight / total, sources[name], name, shares[name].epochs)
            )
    return parts


def _prefixes(folder: Path, facts: Mapping[str, Any], stem: str, tokens: int) -> dict[Path, int]:
    """Return the tokens of each `.bin/.idx` of a data set or a named source: `stem`, or `stem-00000`, …"""
    several: Mapping[str, int] = facts.get("prefixes") or {}
    found = {folder / name: number for name, number in several.items() if name.rpartition("-")[0] == stem}
    return found or {folder / stem: tokens}
