"""What an evaluation measured, item by item: documents for bits per byte, prompts for the rates."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.job import StageError
from tasks.manifest import ArtifactError, read_manifest
from tasks.promote.bootstrap import Floats
from tasks.promote.spec import BITS

NAMES = {"old": ("corpus",), "new": ("more.",), "all": ("corpus", "more.")}  # beginnings of the inputs' names


@dataclass(frozen=True)
class Measured:
    """One model's evaluation."""

    digest: str  # the model's
    label: str
    sampling: dict[str, Any]  # how it was asked
    documents: list[dict[str, Any]]  # id, set, bytes, bits
    prompts: list[dict[str, Any]]  # id, set, checks

    def items(self, which: str, measure: str) -> Floats:
        """A figure for each item of a set: bits of a document, 1.0 or 0.0 of a prompt. [items]"""
        rows, key = (self.documents, "bits") if measure == BITS else (self.prompts, measure)
        return np.array([float(row[key]) for row in rows if row["set"].startswith(NAMES[which])])

    def value(self, which: str, measure: str) -> float:
        """The measure over a set that has items."""
        items = self.items(which, measure)
        if measure != BITS:
            return float(items.mean())
        return float(items.sum() / sum(row["bytes"] for row in self.documents if row["set"].startswith(NAMES[which])))


def read_measured(report: Path) -> Measured:
    """The evaluation in a report's directory. Raises ArtifactError."""
    facts = read_manifest(report).facts
    if not (report / "documents.jsonl").exists():
        raise ArtifactError(
            f"{report}: no documents.jsonl, which comparisons are made of: an older version of the evaluation made "
            "it; evaluate the model again"
        )
    return Measured(
        digest=facts["model_digest"],
        label=facts["label"],
        sampling=json.loads((report / "report.json").read_text())["sampling"],
        documents=_lines(report / "documents.jsonl"),
        prompts=_lines(report / "completions.jsonl"),
    )


def check_comparable(candidate: Measured, champion: Measured) -> None:
    """Raises StageError unless both were asked the same way about the same documents and prompts."""
    asked = {name: (value, champion.sampling.get(name)) for name, value in _asked(candidate).items()}
    for name, (ours, theirs) in asked.items():
        if ours != theirs:
            raise _incomparable(f"evaluate.{name} is {ours!r} for the candidate and {theirs!r} for the champion")
    for what in ("documents", "prompts"):
        ours, theirs = ([_identity(row) for row in getattr(each, what)] for each in (candidate, champion))
        if ours != theirs:
            apart = len(set(ours) ^ set(theirs))
            raise _incomparable(
                f"the candidate has {len(ours)} held-out {what}, the champion {len(theirs)}, and {apart} of them are "
                "one's alone" + ("" if apart else " (they come in another order)")
            )


def _incomparable(what: str) -> StageError:
    return StageError(
        f"the two evaluations cannot be compared: {what}. Evaluate both models with the same spec on the same corpora, "
        "and with the same tokenizer"
    )


def _asked(measured: Measured) -> dict[str, Any]:
    return {name: value for name, value in measured.sampling.items() if name != "placement"}


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["set"], row["id"], row.get("bytes")


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open() as stream:
        return [json.loads(line) for line in stream]
