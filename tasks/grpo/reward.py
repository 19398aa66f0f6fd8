"""The reward of a statement: what the checks say, less what it has in common with the others.

A quarter for each of the four checks. From the checks alone the model learns one harmless statement
and writes it everywhere; so a statement loses up to `penalty` of its reward the more often *other*
prompts were answered with the same text (white space aside), in this step or in the `window`
completions before it. The same answer to the same prompt again costs nothing.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tasks.statements.check import Verdict


@dataclass
class Reward:
    """Scores a step's completions; remembers the last `window` of them."""

    penalty: float
    window: int
    recent: deque[tuple[str, str]] = field(default_factory=deque)  # (prompt id, statement)

    def __call__(self, prompt_ids: Sequence[str], verdicts: Sequence[Verdict]) -> list[float]:
        """One reward in 0..1 for each completion: (prompt's id, verdict)."""
        answers = [(prompt, normal(verdict.statement)) for prompt, verdict in zip(prompt_ids, verdicts, strict=True)]
        # a group that repeats itself is one voice: count (prompt, statement) once
        voices = Counter(statement for _, statement in {*self.recent, *answers})
        self.recent.extend(answers)
        while len(self.recent) > self.window:
            self.recent.popleft()
        return [
            quality(verdict) * (1 - self.penalty * commonness(voices[statement] - 1))
            for verdict, (_, statement) in zip(verdicts, answers, strict=True)
        ]


def quality(verdict: Verdict) -> float:
    """0, ¼, ½, ¾ or 1: the share of checks passed."""
    return (verdict.parses + verdict.not_trivial + verdict.defined + verdict.uses_context) / 4


def commonness(others: int) -> float:
    """0 when no other prompt was answered so, ½ when one was, towards 1 the more there are."""
    return others / (1 + others)


def normal(statement: str) -> str:
    return " ".join(statement.split())
