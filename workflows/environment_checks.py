"""Check environments and tools before any compute: import them in a process of their own, as their stage does, and
reset the environment with the set's first rows."""

import json
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from tasks.environments.environments import Environments
from tasks.environments.spec import ToolUse
from tasks.grpo.spec import GRPOSpec
from tasks.job import StageError
from tasks.rows.stored import Row, encoded, is_conversational
from tasks.spec import Problem
from workflows.row_checks import first_of
from workflows.run_context import RunContext, runs_on_a_cluster

if TYPE_CHECKING:  # pyarrow: not on the path of --help
    from tasks.rows.rows import First
    from tasks.rows.spec import RowsSpec

ROWS = 8  # that reset is tried with


def problems_of_environments(context: RunContext) -> list[Problem]:
    """Problems of the environments that run on this machine; elsewhere other packages may be installed."""
    return [] if runs_on_a_cluster() else list(_problems(context))


def _problems(context: RunContext) -> Iterator[Problem]:
    sets = context.specs.get("data", {})
    for step in context.tunings():
        spec = step.spec
        if spec.placement or not isinstance(spec, GRPOSpec) or not spec.uses_tools() or spec.tool_problems():
            continue  # the last is reported by the stage's spec
        at = "environment" if spec.environment else "tools"
        named = spec.environment.name if spec.environment else [tool.name for tool in spec.tools]
        rows = sets.get(spec.data)
        first = _first(rows) if rows and not rows.problems() and not rows.missing() else None
        asked = _asked(first.rows[:ROWS]) if first and first.kind in spec.row_kinds() else []
        if asked and not is_conversational(asked[0]):
            allowed = "rows whose prompts are messages, which environment and tools need"
            yield Problem(f"{step.path}.data", spec.data, allowed)
            continue
        try:
            owns_reward = _tried(_tool_use(spec).as_found().model_dump_json(), tuple(map(encoded, asked)))
        except StageError as error:
            yield Problem(f"{step.path}.{at}", named, f"what a model can call; {error}")
            continue
        if not (spec.rewards or owns_reward):
            yield Problem(f"{step.path}.rewards", [], f"at least one: {named} has no get_reward()")


def _tool_use(spec: GRPOSpec) -> ToolUse:
    return ToolUse.model_validate({name: getattr(spec, name) for name in ToolUse.model_fields})


def _asked(rows: list[Row]) -> list[Row]:
    from tasks.posttrain.encode import prompted

    return [prompted(row) for row in rows]


def _first(rows: "RowsSpec") -> "First | None":
    try:
        return first_of(rows)
    except StageError:
        return None  # reported for the set itself


@cache  # a recipe is read several times in one run
def _tried(spec: str, rows: tuple[str, ...]) -> bool:
    """Whether the environment has a reward of its own. Raises StageError if it cannot be used."""
    with Environments(ToolUse.model_validate_json(spec)) as environments:
        environments.reset([json.loads(row) for row in rows], list(range(len(rows))))
        return environments.owns_reward
