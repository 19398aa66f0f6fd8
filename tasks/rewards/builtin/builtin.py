"""What the built-in rewards have in common: options that can be called as TRL calls a reward.

A completion is text or a list of messages. Where a row's answer is asked for, `None` for a row says that the reward
does not apply to it.
"""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import Field

from tasks.load_function import Unusable
from tasks.spec import Spec

ANSWERS = ("answer", "solution", "ground_truth", "completion")  # columns that hold what is right, the best known first


class Builtin(Spec):
    """A reward's options; called as `reward(prompts=…, completions=…, **columns)`."""

    def compares(self) -> bool:
        """Whether it says how right a completion is for its row, so that the row's own answer scores highest."""
        return False

    def needs(self, columns: Collection[str]) -> str:
        """What it lacks in rows with these columns, in words; empty when it can work."""
        return ""

    def environment(self) -> list[str]:
        """The environment variables that it has to see."""
        return []

    def __call__(self, *_: Any, **given: Any) -> Any:
        """One reward, or None, for each completion; or a coroutine of that."""
        raise NotImplementedError


class Comparing(Builtin):
    """A reward that compares a completion with its row's answer."""

    column: str | None = Field(
        None, description=f"of the rows, with what is right; by default the first that is there of {', '.join(ANSWERS)}"
    )

    def compares(self) -> bool:
        return True

    def needs(self, columns: Collection[str]) -> str:
        if any(name in columns for name in self._names()):
            return ""
        return f"a column {' or '.join(self._names())} with what is right; the rows have {', '.join(sorted(columns))}"

    def answers(self, columns: Mapping[str, Any]) -> list[str | None]:
        """Each row's right answer as text. Raises Unusable."""
        if needs := self.needs(columns.keys()):
            raise Unusable(f"needs {needs}")
        name = next(name for name in self._names() if name in columns)
        return [None if value is None else text_of(value) for value in columns[name]]

    def _names(self) -> tuple[str, ...]:
        return (self.column,) if self.column else ANSWERS


def text_of(value: Any) -> str:
    """Of a completion or an answer: text, a number, or the contents of a list of messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(text_of(part) for part in value)
    if isinstance(value, dict):  # a message, or a part of one's content
        return text_of(value.get("content") or value.get("text") or "")
    return str(value)
