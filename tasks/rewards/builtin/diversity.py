"""Reward answers that are specific to their prompt, to prevent mode collapse.

With other rewards alone, a policy may learn one harmless answer to everything, or one *shape* filled with different
words. So a completion's reward of 1 falls

- the more *other* prompts were answered with the same text (ignoring white space): to ½ with one other, ⅓ with two; and
- with `shapes`, the more often its shape (its text with every word blanked) occurs beyond its share among the rows' own
  answers (which must be written as the policy should write).

Both are counted over this step and the `window` completions before it, without thinking (`<think>…</think>`). The lower
value applies. Repeating an answer to the same prompt counts once.

In a weighted sum, the reward scales the other rewards instead of adding to them, so that nonsense earns nothing by
being new (see `total` in tasks/rewards/scorer.py).
"""

import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from baton.tasks.rewards.builtin.builtin import Answered, final

TOLERANCE = 0.01  # share by which a shape may exceed its share among the rows' own answers; one occurrence always may
USUAL = 4096  # number of the rows' own answers that are remembered
_WORD = re.compile(r"\w+")

Answer = tuple[str, str, str]  # hashes of prompt, text and shape


class Diversity(Answered):
    """1 for a unique answer, towards 0 for an answer given to every prompt."""

    reads_answers: ClassVar[bool] = True

    window: int = Field(1024, ge=0, description="number of earlier completions to compare with")
    shapes: bool = Field(False, description="count shapes too; the rows' answers must be written as completions should")
    keep: list[str] = Field([], description="words that are part of a shape, such as a language's keywords")

    _recent: deque[Answer] = PrivateAttr(default_factory=deque)
    _usual: deque[Answer] = PrivateAttr(default_factory=deque)  # the same for the rows' own answers

    def wants(self) -> list[tuple[str, ...]]:
        return super().wants() if self.shapes else []

    def __call__(self, *, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        new = [self._hashed(prompt, final(text)) for prompt, text in zip(prompts, completions, strict=True)]
        answers = self.answers(columns) if self.shapes else []
        usual = [self._hashed(prompt, text) for prompt, text in zip(prompts, answers, strict=False) if text is not None]
        distinct = {*self._recent, *new}
        texts = Counter(text for _, text, _ in distinct)
        shares, expected = _shares(distinct), _shares({*self._usual, *usual})
        self._recent = deque([*self._recent, *new], self.window)
        self._usual = deque([*self._usual, *usual], USUAL)
        tolerance = max(TOLERANCE, 1 / max(len(distinct), 1))
        within = {shape: min(1.0, (expected.get(shape, 0.0) + tolerance) / share) for shape, share in shares.items()}
        return [min(1 / texts[text], within[shape] if expected else 1.0) for _, text, shape in new]

    def _hashed(self, prompt: Any, text: str) -> Answer:
        plain = " ".join(text.split())
        shape = _WORD.sub(lambda word: word[0] if word[0] in self.keep else "_", plain)
        return _hash(json.dumps(prompt, sort_keys=True)), _hash(plain), _hash(shape)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs to score like an uninterrupted one."""
        return {"recent": list(self._recent), "usual": list(self._usual)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent = deque(map(tuple, state["recent"]))
        self._usual = deque(map(tuple, state["usual"]))


def _shares(answers: Iterable[Answer]) -> dict[str, float]:
    """Return the relative frequency of each shape."""
    counts = Counter(shape for _, _, shape in answers)
    return {shape: count / counts.total() for shape, count in counts.items()}


def _hash(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
