"""Make preference pairs from completions: the better one and the model's worst one, by their rewards."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path

from baton.infra.storage.durable import write_json
from baton.tasks.core.manifest import verify, write_manifest

KIND, FILE = "preference_pairs", "pairs.json"


@dataclass(frozen=True)
class Pair:
    prompt_ids: Sequence[int]
    chosen_ids: Sequence[int]
    rejected_ids: Sequence[int]  # the tokens as they were sampled

    @classmethod
    def of(cls, prompt: Sequence[int], chosen: Sequence[int], other: Sequence[int], rejected: Sequence[int]) -> "Pair":
        """Make a pair of two completions, each with its own prompt, since a template may render the prompt's end
        differently before some answers."""
        import numpy as np  # imported late, to keep --help fast

        common = min(len(prompt), len(other))
        parts = (prompt[:common], [*prompt[common:], *chosen], [*other[common:], *rejected])
        return cls(*(np.array(part, np.int32) for part in parts))  # type: ignore[arg-type]

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of the prompt, and of the longer completion."""
        return len(self.prompt_ids), max(len(self.chosen_ids), len(self.rejected_ids))

    @property
    def length(self) -> int:
        """Tokens of the longer of the two sequences."""
        return sum(self.lengths)


@dataclass(frozen=True)
class ScoredCompletion:
    """A completion and the weighted sum of its rewards, or None if no reward applies."""

    ids: Sequence[int]
    reward: float | None


@dataclass(frozen=True)
class Pairs:
    pairs: list[Pair]
    sampled: int  # number of prompts
    rewards: dict[str, float]  # each reward's mean over all samples

    @property
    def no_pair(self) -> int:
        """Number of prompts without a pair."""
        return self.sampled - len(self.pairs)

    def save(self, folder: Path) -> None:
        """Write the pairs to a new folder, sealed by its manifest."""
        folder.mkdir()
        write_json(folder / FILE, asdict(self))
        write_manifest(folder, KIND, {})

    @classmethod
    def load(cls, folder: Path) -> "Pairs":
        """Load pairs from a folder. Raises ArtifactError if it is incomplete or damaged."""
        verify(folder)
        return cls.parse((folder / FILE).read_bytes())

    @classmethod
    def parse(cls, text: bytes) -> "Pairs":
        raw = json.loads(text)
        return cls([Pair(**pair) for pair in raw.pop("pairs")], **raw)


def pair(prompt: Sequence[int], answers: Sequence[ScoredCompletion], gold: ScoredCompletion | None) -> Pair | None:
    """Pair the row's own completion, or else the model's best, with the model's worst. None if the worst is not
    worse."""
    scored = [(answer.reward, answer) for answer in answers if answer.reward is not None]
    reward, better = (gold.reward, gold) if gold else max(scored, key=itemgetter(0), default=(None, None))
    lowest, worst = min(scored, key=itemgetter(0), default=(None, None))
    if better is None or reward is None or worst is None or lowest is None or lowest >= reward:
        return None
    return Pair(prompt, better.ids, worst.ids)
