"""Rewards that are functions, tried before anything is spent: each is imported in a process of its own, as its stage
does it, and the columns that it names are looked for in the set's first rows."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from tasks.dpo.spec import DPOSpec
from tasks.grpo.spec import GRPOSpec
from tasks.job import StageError
from tasks.rewards.gold import own_answer
from tasks.rewards.scorer import Scorer, lacking
from tasks.rewards.spec import RewardSpec, rewards_problems
from tasks.rows.spec import RowsSpec
from tasks.rows.stored import Row, reward_columns
from tasks.spec import Problem
from workflows.first_rows import first_of
from workflows.given import Given, runs_on_a_cluster

if TYPE_CHECKING:  # pyarrow: not on the path of --help
    from tasks.rows.rows import First


def problems_of_rewards(given: Given) -> list[Problem]:
    """Of what runs on this machine: elsewhere other packages are installed."""
    return [] if runs_on_a_cluster() else list(_problems(given))


def _problems(given: Given) -> Iterator[Problem]:
    sets = given.specs.get("data", {})
    for path, data, rewards in _lists(given):
        if rewards_problems(rewards):
            continue  # told as the stage's own
        rows = sets.get(data)
        first = _first(rows) if rows and not rows.problems() and not rows.missing() else None
        for number, each in enumerate(rewards):
            try:
                named = _imported(each.as_found().model_dump_json(exclude={"weight"})) if each.function else {}
            except StageError as error:
                yield Problem(f"{path}.{number}", each.label, f"a function that can be used as a reward; {error}")
                continue
            for problem in lacking(each, named, _columns(first.rows)) if first and first.rows else ():
                there = f"; those of {data} have {', '.join(problem.value)}"
                yield Problem(f"{path}.{number}", each.label, problem.allowed + there)


def _first(rows: RowsSpec) -> "First | None":
    try:
        return first_of(rows)
    except StageError:
        return None  # told as the set's own


def _lists(given: Given) -> Iterator[tuple[str, str, Sequence[RewardSpec]]]:
    """The path of each list of rewards, the set of rows that they are called with, and the list."""
    for step in given.tunings():
        if step.spec.placement:
            continue
        if isinstance(step.spec, GRPOSpec):
            yield f"{step.path}.rewards", step.spec.data, step.spec.rewards
        elif isinstance(step.spec, DPOSpec) and step.spec.pairs:
            yield f"{step.path}.pairs.rewards", step.spec.data, step.spec.pairs.rewards
    if "evaluate" in given and not given.specs["evaluate"].placement:
        for name, each in given.specs["evaluate"].evaluators().items():
            yield f"evaluate.{name}.rewards", each.data or "", each.rewards


@cache
def _imported(reward: str) -> dict[str, bool]:
    """The columns that a function names, and whether it needs them. Raises StageError."""
    with Scorer([spec := RewardSpec.model_validate_json(reward)]) as scorer:
        return scorer.columns[spec.label]


def _columns(rows: Sequence[Row]) -> set[str]:
    """What rewards are called with beside prompts and completions."""
    answered = any("messages" in row or own_answer(row) is not None for row in rows)
    return {*reward_columns(rows), "completion_ids", *(["completion"] if answered else [])}
