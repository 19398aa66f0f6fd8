"""How much a completion is the policy's answer to its own prompt, and not one that it gives to all.

From rewards alone a policy may learn one harmless answer and give it everywhere, or one *shape* with ever new words in
it. So a completion's worth of 1 falls

- the more *other* prompts were answered with the same text (white space aside): to ½ with one other, ⅓ with two; and
- with `shapes`, the more its shape, which is its text with every word blanked, is used beyond the share that it has
  among the rows' own answers (for answers that are written as the policy is to write them);

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

from tasks.rewards.builtin.builtin import Comparing
from tasks.rewards.call import text_of

TOLERANCE = 0.01  # share by which a shape may exceed the rows' own use of it, or once: mere chance
USUAL = 4096  # of the rows' own answers that are remembered
_WORD = re.compile(r"\w+")

Said = tuple[str, str, str]  # prompt, text, shape: hashes of them


class Diversity(Comparing):
    """1 for an answer of its own, towards 0 for what is said to everyone."""

    window: int = Field(1024, ge=0, description="how many completions before this step's are remembered")
    shapes: bool = Field(False, description="count shapes too: the rows' answers are written as completions should be")
    keep: list[str] = Field([], description="words that are part of a shape, such as a language's keywords")

    _recent: deque[Said] = PrivateAttr(default_factory=deque)
    _usual: deque[Said] = PrivateAttr(default_factory=deque)  # the same of the rows' own answers

    def compares(self) -> bool:
        return False

    def wants(self) -> list[tuple[str, ...]]:
        return super().wants() if self.shapes else []

    def __call__(self, *, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        said = [self._said(prompt, text_of(text)) for prompt, text in zip(prompts, completions, strict=True)]
        answers = self.answers(columns) if self.shapes else []
        usual = [self._said(prompt, text) for prompt, text in zip(prompts, answers, strict=False) if text is not None]
        voices = {*self._recent, *said}
        texts = Counter(text for _, text, _ in voices)
        shares, expected = _shares(voices), _shares({*self._usual, *usual})
        _remember(self._recent, said, self.window)
        _remember(self._usual, usual, USUAL)
        chance = max(TOLERANCE, 1 / max(len(voices), 1))
        within = {shape: min(1.0, (expected.get(shape, 0.0) + chance) / share) for shape, share in shares.items()}
        return [min(1 / texts[text], within[shape] if expected else 1.0) for _, text, shape in said]

    def _said(self, prompt: Any, text: str) -> Said:
        plain = " ".join(text.split())
        shape = _WORD.sub(lambda word: word[0] if word[0] in self.keep else "_", plain)
        return _hash(json.dumps(prompt, sort_keys=True)), _hash(plain), _hash(shape)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs, to score as one that was never interrupted."""
        return {"recent": list(self._recent), "usual": list(self._usual)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent = deque(tuple(each) for each in state["recent"])
        self._usual = deque(tuple(each) for each in state["usual"])


def _remember(known: deque[Said], new: list[Said], most: int) -> None:
    known.extend(new)
    while len(known) > most:
        known.popleft()


def _shares(said: Iterable[Said]) -> dict[str, float]:
    """How large a part has each shape."""
    counts = Counter(shape for _, _, shape in said)
    return {shape: count / counts.total() for shape, count in counts.items()}


def _hash(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()
