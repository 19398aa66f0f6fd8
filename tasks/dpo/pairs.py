"""Preference pairs of a model's own completions: a better one, and the worst, as the rewards have it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.durable import write_json
from tasks.manifest import verify, write_manifest

KIND, FILE = "preference_pairs", "pairs.json"


@dataclass(frozen=True)
class Pair:
    prompt_ids: Sequence[int]
    chosen_ids: Sequence[int]
    rejected_ids: Sequence[int]  # the tokens as they were sampled

    @property
    def length(self) -> int:
        """Tokens of the longer of the two sequences."""
        return len(self.prompt_ids) + max(len(self.chosen_ids), len(self.rejected_ids))


@dataclass(frozen=True)
class Answer:
    """A completion, and the weighted sum of its rewards; None where no reward applies."""

    ids: Sequence[int]
    worth: float | None


@dataclass(frozen=True)
class Pairs:
    pairs: list[Pair]
    sampled: int  # prompts
    rewards: dict[str, float]  # of all samples, by name: means

    @property
    def no_pair(self) -> int:
        """Prompts of which no completion is better than another."""
        return self.sampled - len(self.pairs)

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


def pair(prompt: Sequence[int], answers: Sequence[Answer], gold: Answer | None) -> Pair | None:
    """The row's own completion or else the model's best, with the model's worst; None when that is no worse."""
    known = [answer for answer in answers if answer.worth is not None]
    better = gold or max(known, key=_worth, default=None)
    worst = min(known, key=_worth, default=None)
    if better is None or better.worth is None or worst is None or _worth(worst) >= better.worth:
        return None
    return Pair(prompt, better.ids, worst.ids)


def _worth(answer: Answer) -> float:
    assert answer.worth is not None
    return answer.worth
