"""Check reward functions before any compute: import each in a separate process, as its stage does, and look for the
columns that it names in the set's first rows."""

from collections.abc import Iterator, Sequence
from functools import cache

from baton.tasks.core.inputs import side_by_side
from baton.tasks.core.job import StageError
from baton.tasks.core.spec import Problem
from baton.tasks.rewards.scorer import Scorer, missing_columns
from baton.tasks.rewards.spec import RewardSpec, rewards_problems
from baton.tasks.rows.stored import Row, partial_columns, reserved_columns, reward_columns
from baton.workflows.checks.rows import valid_first
from baton.workflows.checks.run_context import RunContext, runs_on_a_cluster
from baton.workflows.dag.post_training import reward_lists


def problems_of_rewards(context: RunContext) -> Iterator[Problem]:
    """Problems of the rewards that run on this machine; elsewhere other packages may be installed."""
    if runs_on_a_cluster():
        return
    sets = context.specs.get("data", {})
    every = reward_lists(context.tunings(), context.specs.get("evaluate"))
    lists = [one for one in every if not rewards_problems(one[2])]  # those with problems are reported by their specs
    found = side_by_side(_imported, {key for *_, rewards, _ in lists for key in map(_key, rewards) if key})
    for path, data, rewards, given in lists:
        rows = sets.get(data)
        first = valid_first(rows)
        for name, allowed in (reserved_columns(first.rows) if first and rewards else {}).items():
            yield Problem(path, f"column {name} of {data}", allowed)
        for number, reward in enumerate(rewards):
            named = found.get(_key(reward), {})
            if isinstance(named, str):
                yield Problem(f"{path}.{number}", reward.label, f"a function that can be used as a reward; {named}")
                continue
            for problem in missing_columns(reward, named, _columns(first.rows) | given) if first and first.rows else ():
                present = f"; those of {data} have {', '.join(problem.value)}"
                wanted = problem.allowed.rpartition(" ")[2]
                if "completion" in problem.value and wanted != "completion_ids":
                    twice = f"{{{wanted}: completion, completion: completion}}"
                    present += f". If that is the completion, give it both names: data.{data}.columns: {twice}"
                yield Problem(f"{path}.{number}", reward.label, problem.allowed + present)


def _key(reward: RewardSpec) -> str:
    """The reward as `_imported` gets it; empty if it runs no code of users."""
    runs_code = reward.builtin is None or reward.builtin.runs_code
    return reward.pinned().model_dump_json(exclude={"weight"}) if runs_code else ""


@cache
def _imported(reward: str) -> dict[str, bool] | str:
    """The columns that a function names, and whether it requires them, or why it cannot be used."""
    try:
        with Scorer([spec := RewardSpec.model_validate_json(reward)]) as scorer:
            return scorer.columns[spec.label]
    except StageError as error:
        return str(error)


def _columns(rows: Sequence[Row]) -> set[str]:
    """The columns that rewards are called with for every row, besides prompts and completions."""
    answered = any({"messages", "chosen"} & row.keys() for row in rows)
    return {*reward_columns(rows)} - partial_columns(rows) | {"completion_ids", *(["completion"] if answered else [])}
