"""Check environments and tools before any compute: import them in a separate process, as their stage does, and reset
the environment with the set's first rows."""

import json
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from baton.tasks.core.job import StageError
from baton.tasks.core.spec import Problem
from baton.tasks.environments.environments import Environments
from baton.tasks.environments.spec import ToolUse
from baton.tasks.posttrain.spec import PROMPTED
from baton.tasks.rows.stored import Row, encoded, is_conversational
from baton.workflows.checks.rows import valid_first
from baton.workflows.checks.run_context import RunContext, runs_on_a_cluster

if TYPE_CHECKING:  # pyarrow: not on the path of --help
    from baton.tasks.rows.rows import First

ROWS = 8  # rows that reset() is tried with


def problems_of_environments(context: RunContext) -> Iterator[Problem]:
    """Problems of the environments that run on this machine; elsewhere other packages may be installed."""
    if runs_on_a_cluster():
        return
    sets = context.specs.get("data", {})
    for path, spec, data, has_rewards in _users(context):
        at = "environment" if spec.environment else "tools"
        named = spec.environment.name if spec.environment else [tool.name for tool in spec.tools]
        rows = sets.get(data)
        first = valid_first(rows)
        asked = _asked(path, first) if first else []
        if asked and not is_conversational(asked[0]):
            allowed = "rows whose prompts are messages, which environment and tools need"
            yield Problem(f"{path}.data", data, allowed)
            continue
        try:
            owns_reward = _tried(_tool_use(spec).pinned().model_dump_json(), tuple(map(encoded, asked)))
        except StageError as error:
            yield Problem(f"{path}.{at}", named, f"what a model can call; {error}")
            continue
        if not (has_rewards or owns_reward):
            yield Problem(f"{path}.rewards", [], f"at least one: {named} has no get_reward()")


def _users(context: RunContext) -> Iterator[tuple[str, ToolUse, str, bool]]:
    """(path, spec, set of rows, whether it has rewards) of each user of an environment or tools on this machine that
    can be tried."""
    users: list[tuple[str, ToolUse, str, bool]] = []
    for step in context.tunings():
        if isinstance(spec := step.spec, ToolUse) and not spec.placement:
            users.append((step.path, spec, spec.data, any(each.rewards for each in spec.reward_lists())))
    if "evaluate" in context and not context.specs["evaluate"].placement:
        evaluators = context.specs["evaluate"].evaluators()
        users += [
            (f"evaluate.{name}", one, one.data, bool(one.rewards))
            for name, one in evaluators.items()
            if one.data is not None
        ]
    for user in users:
        if user[1].uses_tools() and not user[1].tool_problems():  # the spec itself reports these
            yield user


def _tool_use(spec: ToolUse) -> ToolUse:
    return ToolUse.model_validate({name: getattr(spec, name) for name in ToolUse.model_fields})


def _asked(path: str, first: "First") -> list[Row]:
    """The first rows as the stage has them, with prompts; none if they have no prompt, which rows.py reports."""
    from baton.tasks.evaluate.questions import question_of
    from baton.tasks.posttrain.encode import prompted

    if first.kind not in PROMPTED and not (path.startswith("evaluate.") and first.kind == "preference"):
        return []
    if not path.startswith("evaluate."):
        return [prompted(row) for row in first.rows[:ROWS]]
    return [row | {"prompt": question_of(path, row)[0]} for row in first.rows[:ROWS]]


@cache  # a recipe is read several times in one run
def _tried(spec: str, rows: tuple[str, ...]) -> bool:
    """Return whether the environment defines a reward. Raises StageError if it cannot be used."""
    with Environments(ToolUse.model_validate_json(spec)) as environments:
        environments.reset([json.loads(row) for row in rows], list(range(len(rows))))
        return environments.owns_reward
