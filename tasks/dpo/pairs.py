"""Preference pairs: the real statement, and the model's own that fails a check."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra.durable import write_json
from tasks.manifest import verify, write_manifest
from tasks.posttrain.examples import Example
from tasks.statements.check import check

if TYPE_CHECKING:  # a type only; the module imports vLLM
    from tasks.serve.engine import Completion

KIND, FILE = "preference_pairs", "pairs.json"


@dataclass(frozen=True)
class Pair:
    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]  # the tokens as they were sampled

    @property
    def length(self) -> int:
        """Tokens of the longer of the two sequences."""
        return len(self.prompt_ids) + max(len(self.chosen_ids), len(self.rejected_ids))


@dataclass(frozen=True)
class Pairs:
    """`passed`: prompts on which the model's own statement passes; they make no pair."""

    pairs: list[Pair]
    sampled: int
    passed: int

    def save(self, folder: Path) -> None:
        """Into a new folder, sealed by its manifest."""
        folder.mkdir()
        write_json(folder / FILE, asdict(self))
        write_manifest(folder, KIND, {}, {}, {})

    @classmethod
    def load(cls, folder: Path) -> "Pairs":
        """Raises ArtifactError when the folder is not whole."""
        verify(folder)
        raw = json.loads((folder / FILE).read_text())
        return cls([Pair(**pair) for pair in raw.pop("pairs")], **raw)


def make_pairs(examples: Sequence[Example], completions: Sequence["Completion"]) -> Pairs:
    """One completion per example."""
    pairs = [
        Pair(example.prompt_ids, example.statement_ids, list(completion.token_ids))
        for example, completion in zip(examples, completions, strict=True)
        if not check(example.prompt, completion.text).all_checks
    ]
    return Pairs(pairs, sampled=len(examples), passed=len(examples) - len(pairs))
