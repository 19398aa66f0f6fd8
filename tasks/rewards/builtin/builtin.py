"""What the built-in rewards have in common: options that can be called as TRL calls a reward.

A completion is text or a list of messages. Where a row's answer is asked for, `None` for a row says that the reward
does not apply to it.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from tasks.rewards.call import text_of
from tasks.spec import Spec

ANSWERS = ("answer", "solution", "ground_truth", "completion")  # columns that hold what is right, the best known first


class Builtin(Spec):
    """A reward's options; called as `reward(prompts=…, completions=…, **columns)`."""

    def compares(self) -> bool:
        """Whether it says how right a completion is for its row, so that the row's own answer scores highest."""
        return False

    def wants(self) -> list[tuple[str, ...]]:
        """The columns of the rows that it needs, one of each tuple; `completion_ids` counts as one."""
        return []

    def environment(self) -> list[str]:
        """The environment variables that it has to see."""
        return []

    @abstractmethod
    def __call__(self, *_: Any, **given: Any) -> Any:
        """One reward, or None, for each completion; or a coroutine of that."""


class Comparing(Builtin):
    """A reward that compares a completion with its row's answer."""

    column: str | None = Field(
        None, description=f"of the rows, with what is right; by default the first that is there of {', '.join(ANSWERS)}"
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
