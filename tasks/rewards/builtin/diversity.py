"""How much a completion is the policy's answer to its own prompt, and not one that it gives to all.

From rewards alone a policy may learn one harmless answer and give it everywhere, or one *shape* with ever new words in
it. So a completion's worth of 1 falls

- the more *other* prompts were answered with the same text (white space aside): to ½ with one other, ⅓ with two; and
- the more its shape, which is its text with every word blanked, is used beyond the share that it has among the rows'
  own answers, where rows have answers;

counted over this step and the `window` completions before it. The lower of the two counts. The same answer to the
same prompt again is one answer.

In a weighted sum this is no summand: what a completion earns by the other rewards is scaled by it, so that nonsense
earns nothing by being new (see `total` in tasks/rewards/scorer.py).
"""

import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from pydantic import Field, PrivateAttr

from tasks.rewards.builtin.builtin import Comparing, text_of

TOLERANCE = 0.01  # share by which a shape may exceed the rows' own use of it: about one in a step, so mere chance
_WORD = re.compile(r"\w+")

Said = tuple[str, str, str]  # prompt, text, shape: hashes of them


class Diversity(Comparing):
    """1 for an answer of its own, towards 0 for what is said to everyone."""

    window: int = Field(4096, ge=0, description="how many completions before this step's are remembered")
    shapes: bool = Field(True, description="count shapes too, where the rows have answers")

    _recent: deque[Said] = PrivateAttr(default_factory=deque)
    _usual: deque[Said] = PrivateAttr(default_factory=deque)  # the same of the rows' own answers

    def compares(self) -> bool:
        return False

    def needs(self, columns: object) -> str:
        return ""

    def __call__(self, *, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        said = [_said(prompt, text_of(text)) for prompt, text in zip(prompts, completions, strict=True)]
        here = any(name in columns for name in self._names())
        answers = self.answers(columns) if here and self.shapes else []
        usual = [_said(prompt, text) for prompt, text in zip(prompts, answers, strict=False) if text is not None]
        voices = {*self._recent, *said}
        texts = Counter(text for _, text, _ in voices)
        shares, expected = _shares(voices), _shares({*self._usual, *usual})
        self._remember(self._recent, said)
        self._remember(self._usual, usual)
        return [min(1 / texts[text], _within(shares[shape], expected, shape)) for _, text, shape in said]

    def _remember(self, known: deque[Said], new: list[Said]) -> None:
        known.extend(new)
        while len(known) > self.window:
            known.popleft()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, to score as one that was never interrupted."""
        return {"recent": list(self._recent), "usual": list(self._usual)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent = deque(tuple(each) for each in state["recent"])
        self._usual = deque(tuple(each) for each in state["usual"])


def _shares(said: Iterable[Said]) -> dict[str, float]:
    """How large a part has each shape."""
    counts = Counter(shape for _, _, shape in said)
    return {shape: count / counts.total() for shape, count in counts.items()}


def _within(share: float, expected: dict[str, float], shape: str) -> float:
    """1 up to the rows' own share of a shape, towards 0 far above it."""
    return min(1.0, (expected.get(shape, 0.0) + TOLERANCE) / share) if expected else 1.0


def _said(prompt: Any, text: str) -> Said:
    plain = " ".join(text.split())
    return _hash(json.dumps(prompt, sort_keys=True)), _hash(plain), _hash(_WORD.sub("_", plain))


def _hash(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
