"""Base classes of the built-in rewards, whose options are callable with TRL's signature.

A completion is text or a list of messages. A reward of `None` means that the reward does not apply to the row.
"""

import signal
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from baton.infra.text import shown
from baton.tasks.core.spec import Spec
from baton.tasks.rewards.call import text_of
from baton.tasks.rewards.thinking import Thinking

ANSWERS = ("answer", "solution", "ground_truth", "completion")  # columns that may contain the right answer, in order


EACH_S = 1.0  # time limit of a user's pattern on one completion
MOST_REPORTED = 20  # maximum number of different messages of a reward


class Builtin(Spec):
    """A reward's options, called as `reward(prompts=…, completions=…, **columns)`."""

    runs_code: ClassVar[bool] = False  # whether it runs programs, which may be impossible on a machine (`prepare`)
    reads_answers: ClassVar[bool] = False  # whether it ignores thoughts (`final`)
    each_s: ClassVar[float] = 0.0  # seconds that a completion may need beyond timeout_s

    _reported: set[str] = PrivateAttr(default_factory=set)

    def compares(self) -> bool:
        """Return whether the reward measures correctness, so that a row's own answer scores highest."""
        return False

    def wants(self) -> list[tuple[str, ...]]:
        """Return the required columns, one of each tuple; by default that of the field `column`. `completion_ids`
        counts as a column."""
        column: str | None = getattr(self, "column", None)
        return [(column,)] if column else []

    def environment(self) -> list[str]:
        """Return the environment variables that the reward needs."""
        return []

    def prepare(self) -> None:
        """Prepare for calls, once, in the process that will call the reward. Raises Unusable."""

    def extra_s(self, completions: int, columns: Mapping[str, Sequence[Any]]) -> float:
        """Return the seconds that one call may need beyond its timeout_s."""
        return self.each_s * completions

    def _report_once(self, message: str) -> None:
        """Print a message that nothing else shows, once, and at most MOST_REPORTED messages."""
        if len(self._reported) < MOST_REPORTED and message not in self._reported:
            self._reported.add(message)
            print(shown(message), file=sys.stderr, flush=True)

    @abstractmethod
    def __call__(self, *_: Any, **columns: Any) -> Any:
        """Return one reward, or None, per completion, or a coroutine that does."""


class Answered(Builtin):
    """A reward that reads the rows' answers."""

    column: str | None = Field(
        None, description=f"column with the right answer; null: the first existing one of {', '.join(ANSWERS)}"
    )

    def wants(self) -> list[tuple[str, ...]]:
        return super().wants() or [ANSWERS]

    def answers(self, columns: Mapping[str, Any]) -> list[str | None]:
        """Return each row's right answer as text."""
        (names,) = Answered.wants(self)
        values = next(columns[name] for name in names if name in columns)
        return [None if value is None else final(value) for value in values]


class Comparing(Answered):
    """A reward that compares a completion with its row's answer."""

    reads_answers: ClassVar[bool] = True

    def compares(self) -> bool:
        return True

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        pairs = zip(completions, self.answers(columns), strict=True)
        return [None if answer is None else self.worth(final(one), answer) for one, answer in pairs]

    @abstractmethod
    def worth(self, text: str, answer: str) -> float | None:
        """Return the reward of a completion's text, without its thinking."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the body after `seconds`. This works only in the main thread, where rewards are called."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"it takes more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def final(completion: Any) -> str:
    """Return the text of a completion after its thinking, or "" if the thinking does not end. If a template has begun
    the thinking, tasks/rewards/call.py adds its beginning."""
    return Thinking().answer(text_of(completion))
