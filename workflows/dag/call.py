"""A stage of a DAG as data: what is run on what, before anything is looked up or run."""

from dataclasses import dataclass, field
from typing import TypeAlias

from baton.tasks.core.spec import StageSpec

Input: TypeAlias = str | list[str] | dict[str, str]  # titles of the calls whose outputs it is


@dataclass(frozen=True)
class Call:
    """One use of a stage."""

    title: str  # unique in its DAG, and the run's name on the pages and in MLflow: "rows-chat", "evaluate-chat"
    stage: str  # name of its Flyte task: "prepare_rows" (workflows/dag/tasks.py)
    spec: StageSpec
    inputs: dict[str, Input] = field(default_factory=dict)
    after: tuple[str, ...] = ()  # titles of calls that must end before it, besides those of its inputs

    def titles(self, leave_out: tuple[str, ...] = ()) -> set[str]:
        """The calls that it has inputs from."""
        return {title for name, value in self.inputs.items() if name not in leave_out for title in titles_of(value)}


def titles_of(value: Input) -> list[str]:
    """The titles in an input."""
    if isinstance(value, str):
        return [value]
    return [*value.values()] if isinstance(value, dict) else value


class Calls(list[Call]):
    """A DAG in topological order."""

    def add(self, title: str, stage: str, spec: StageSpec, *, after: list[str] | None = None, **inputs: Input) -> str:
        """Append a call. Returns its title, as which later calls name its output."""
        self.append(Call(title, stage, spec, inputs, tuple(after or ())))
        return title
