"""Check reward functions before any compute: import each in a separate process, as its stage does, and look for the
columns that it names in the set's first rows."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from tasks.dpo.spec import DPOSpec
from tasks.grpo.spec import GRPOSpec
from tasks.job import StageError
from tasks.rewards.call import ENVIRONMENTS
from tasks.rewards.gold import own_answer
from tasks.rewards.scorer import Scorer, lacking
from tasks.rewards.spec import RewardSpec, rewards_problems
from tasks.rows.spec import RowsSpec
from tasks.rows.stored import Row, partial_columns, reward_columns
from tasks.spec import Problem
from workflows.row_checks import first_of
from workflows.run_context import RunContext, runs_on_a_cluster

if TYPE_CHECKING:  # pyarrow: not on the path of --help
    from tasks.rows.rows import First


def problems_of_rewards(context: RunContext) -> list[Problem]:
    """Problems of the rewards that run on this machine; elsewhere other packages may be installed."""
    return [] if runs_on_a_cluster() else list(_problems(context))


def _problems(context: RunContext) -> Iterator[Problem]:
    sets = context.specs.get("data", {})
    for path, data, rewards, given in reward_lists(context):
        if rewards_problems(rewards):
            continue  # reported by the stage's spec
        rows = sets.get(data)
        first = _first(rows) if rows and not rows.problems() and not rows.missing() else None
        for number, reward in enumerate(rewards):
            try:
                tried = reward.builtin is None or reward.builtin.runs_code()
                named = _imported(reward.as_found().model_dump_json(exclude={"weight"})) if tried else {}
            except StageError as error:
                yield Problem(f"{path}.{number}", reward.label, f"a function that can be used as a reward; {error}")
                continue
            for problem in lacking(reward, named, _columns(first.rows) | given) if first and first.rows else ():
                present = f"; those of {data} have {', '.join(problem.value)}"
                yield Problem(f"{path}.{number}", reward.label, problem.allowed + present)


def _first(rows: RowsSpec) -> "First | None":
    try:
        return first_of(rows)
    except StageError:
        return None  # reported for the set itself


def reward_lists(context: RunContext) -> Iterator[tuple[str, str, Sequence[RewardSpec], set[str]]]:
    """(path, set of rows, rewards, columns that they get beside the rows') of each list of rewards that is not used by
    a placed stage."""
    for step in context.tunings():
        if step.spec.placement:
            continue
        if isinstance(step.spec, GRPOSpec):
            given = {ENVIRONMENTS} if step.spec.environment else set()
            yield f"{step.path}.rewards", step.spec.data, step.spec.rewards, given
        elif isinstance(step.spec, DPOSpec) and step.spec.pairs:
            yield f"{step.path}.pairs.rewards", step.spec.data, step.spec.pairs.rewards, set()
    if "evaluate" in context and not context.specs["evaluate"].placement:
        for name, evaluator in context.specs["evaluate"].evaluators().items():
            given = {ENVIRONMENTS} if evaluator.environment else set()
            yield f"evaluate.{name}.rewards", evaluator.data or "", evaluator.rewards, given


@cache
def _imported(reward: str) -> dict[str, bool]:
    """The columns that a function names, and whether it requires them. Raises StageError."""
    with Scorer([spec := RewardSpec.model_validate_json(reward)]) as scorer:
        return scorer.columns[spec.label]


def _columns(rows: Sequence[Row]) -> set[str]:
    """The columns that rewards are called with for every row, beside prompts and completions."""
    answered = any("messages" in row or own_answer(row) is not None for row in rows)
    return {*reward_columns(rows)} - partial_columns(rows) | {"completion_ids", *(["completion"] if answered else [])}
