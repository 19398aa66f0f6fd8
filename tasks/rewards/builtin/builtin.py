"""Base classes of the built-in rewards: options that are callable with TRL's signature.

A completion is text or a list of messages. A reward of `None` means that it does not apply to the row.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from tasks.rewards.call import text_of
from tasks.spec import Spec

ANSWERS = ("answer", "solution", "ground_truth", "completion")  # columns that may contain the right answer, in order


class Builtin(Spec):
    """A reward's options; called as `reward(prompts=…, completions=…, **columns)`."""

    def compares(self) -> bool:
        """Whether it measures correctness, so that a row's own answer scores highest."""
        return False

    def wants(self) -> list[tuple[str, ...]]:
        """Required columns, one of each tuple; `completion_ids` counts as a column."""
        return []

    def environment(self) -> list[str]:
        """Environment variables that it needs."""
        return []

    def runs_code(self) -> bool:
        """Whether it runs programs, for which a machine may lack the means: `prepare` tells."""
        return False

    def prepare(self) -> None:
        """Called once where it will run, before any call. Raises Unusable."""

    def extra_s(self, completions: int, columns: Mapping[str, Sequence[Any]]) -> float:
        """Seconds that one call may need beyond its timeout_s."""
        return 0.0

    @abstractmethod
    def __call__(self, *_: Any, **columns: Any) -> Any:
        """One reward, or None, per completion; or a coroutine of that."""


class Comparing(Builtin):
    """A reward that compares a completion with its row's answer."""

    column: str | None = Field(
        None, description=f"column with the right answer; null: the first existing one of {', '.join(ANSWERS)}"
    )

    def compares(self) -> bool:
        return True

    def wants(self) -> list[tuple[str, ...]]:
        return [(self.column,) if self.column else ANSWERS]

    def answers(self, columns: Mapping[str, Any]) -> list[str | None]:
        """Each row's right answer as text."""
        (names,) = Comparing.wants(self)
        values = next(columns[name] for name in names if name in columns)
        return [None if value is None else text_of(value) for value in values]
