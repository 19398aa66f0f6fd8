"""The reward of a statement: what the checks say, less what it has in common with the others.

A quarter for each of the four checks. From the checks alone the model learns one harmless statement
and writes it everywhere, or one harmless *shape* with ever new names in it. So a statement loses up
to `penalty` of its reward

- the more *other* prompts were answered with the same text (white space aside), and
- the more its shape is written more often than people write it,

counted over this step and the `window` completions before it. Of the two losses the larger counts.
The same answer to the same prompt again is one answer.
"""

import json
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.durable import write_json
from tasks.grpo.shape import shape
from tasks.statements.check import Verdict

MEMORY = "reward.json"
TOLERANCE = 0.01  # share by which a shape may exceed people's use: about one in a step, so mere chance


@dataclass
class Reward:
    """Scores a step's completions; remembers the last `window` of them."""

    penalty: float
    window: int
    usual: Mapping[str, float]  # shape -> its share of what people write
    recent: deque[tuple[str, str]] = field(default_factory=deque)  # (prompt's id, statement)

    def __call__(self, prompts: Sequence[str], verdicts: Sequence[Verdict]) -> list[float]:
        """One reward in 0..1 for each completion: (prompt's id, verdict)."""
        answers = [(prompt, normal(verdict.statement)) for prompt, verdict in zip(prompts, verdicts, strict=True)]
        voices = {*self.recent, *answers}
        texts = Counter(text for _, text in voices)
        shapes = Counter(shape(text) for _, text in voices)
        self.recent.extend(answers)
        while len(self.recent) > self.window:
            self.recent.popleft()
        scores = []
        for verdict, (_, text) in zip(verdicts, answers, strict=True):
            key = shape(text)
            loss = max(commonness(texts[text] - 1), excess(shapes[key] / len(voices), self.usual.get(key, 0.0)))
            scores.append(quality(verdict) * (1 - self.penalty * loss))
        return scores

    def save(self, checkpoint: Path) -> None:
        """Into a checkpoint, so that a resumed run scores like one that was never interrupted."""
        write_json(checkpoint / MEMORY, list(self.recent))

    def load(self, checkpoint: Path) -> None:
        self.recent = deque((prompt, text) for prompt, text in json.loads((checkpoint / MEMORY).read_text()))


def quality(verdict: Verdict) -> float:
    """0, ¼, ½, ¾ or 1: the share of checks passed."""
    return (verdict.parses + verdict.not_trivial + verdict.defined + verdict.uses_context) / 4


def commonness(others: int) -> float:
    """0 when no other prompt was answered so, ½ when one was, towards 1 the more there are."""
    return others / (1 + others)


def excess(share: float, usual: float) -> float:
    """What part of a shape's uses is beyond its usual share: 0 up to that, towards 1 far above it."""
    return max(0.0, 1 - (usual + TOLERANCE) / share)


def normal(statement: str) -> str:
    return " ".join(statement.split())
