"""Preference pairs: the real statement, and the model's own that fails a check."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra.durable import write_json
from tasks.posttrain.examples import Example
from tasks.statements.check import check

if TYPE_CHECKING:  # a type only; the module imports vLLM
    from tasks.serve.engine import Completion


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

    def save(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> "Pairs":
        raw = json.loads(path.read_text())
        return cls([Pair(**pair) for pair in raw.pop("pairs")], **raw)


def make_pairs(examples: Sequence[Example], completions: Sequence["Completion"]) -> Pairs:
    """One completion per example."""
    pairs = [
        Pair(example.prompt_ids, example.statement_ids, list(completion.token_ids))
        for example, completion in zip(examples, completions, strict=True)
        if not check(example.prompt, completion.text).all_checks
    ]
    return Pairs(pairs, sampled=len(examples), passed=len(examples) - len(pairs))
