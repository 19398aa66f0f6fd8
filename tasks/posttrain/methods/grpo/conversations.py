"""Hold the conversations of a run's rows with their environments, and score them."""

from collections.abc import Mapping, Sequence

from blake3 import blake3

from baton.tasks.core.job import StageError
from baton.tasks.environments.environments import Environments
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.score import score
from baton.tasks.posttrain.spec import LengthLimits
from baton.tasks.posttrain.tool_calls import ToolCalls
from baton.tasks.posttrain.trl_hooks.turns import Converse
from baton.tasks.posttrain.turns import Conversation, Generate, converse
from baton.tasks.rewards.call import ENVIRONMENTS
from baton.tasks.rewards.scorer import Scorer, Scores, within_range
from baton.tasks.rows.stored import Row


def with_tools(row: Row, environments: Environments) -> Row:
    """Add the schemas of the tools to a row. Raises StageError for a prompt of text."""
    if not isinstance(row["prompt"], list):
        raise StageError(
            f"environment and tools need prompts of messages; this row's is text: {row['prompt']!r:.100}. Write it as "
            '[{"role": "user", "content": …}]'
        )
    return row | {"tools": environments.schemas}


def about(
    rows: Sequence[Row], environments: Environments, calls: ToolCalls, spec: GRPOSpec, limits: LengthLimits
) -> Converse:
    """Return a function that holds conversations about these rows. An environment's seed follows from the run's seed,
    the step and the row, so that the completions of a group meet the same environment."""

    def about_rows(indices: Sequence[int], step: int, generate: Generate) -> list[Conversation]:
        seeds = [_seed(spec.seed, step, index) for index in indices]
        chosen = [rows[index] for index in indices]
        return converse(chosen, seeds, environments, calls, generate, limits, spec.max_turns)

    return about_rows


def score_conversations(
    scorer: Scorer, conversations: Sequence[Conversation], environments: Environments, state: Mapping[str, float]
) -> Scores:
    """Score conversations with the rewards and, under the class's name, the environment's get_reward. Conversations
    that have lost their environment get None. Raises StageError if all have lost it, or if a sum is too large."""
    intact = [one for one in conversations if not one.final.lost]
    if len(intact) < len(conversations):
        lost = next(one for one in conversations if one.final.lost)
        message = (
            f"{len(conversations) - len(intact)} of {len(conversations)} conversations have lost their environment; "
            f"{lost.final.lost}, for the row {lost.row!r:.300}"
        )
        if not intact:
            raise StageError(message)
        print(message, flush=True)
    has_state = environments.spec.environment is not None
    rows = [one.row | ({ENVIRONMENTS: one.final.state} if has_state else {}) for one in intact]
    scores = score(scorer, rows, [one.messages for one in intact], [one.ids for one in intact], state)
    rewards, total = dict(scores.rewards), list(scores.total)
    if environments.owns_reward:
        environment_rewards = rewards[environments.name] = [one.final.reward for one in intact]
        total = within_range([_sum(*pair) for pair in zip(total, environment_rewards, strict=True)])
    places = iter(range(len(intact)))
    place = [None if one.final.lost else next(places) for one in conversations]

    def spread(values: Sequence[float | None]) -> list[float | None]:
        return [None if at is None else values[at] for at in place]

    return Scores(
        {name: spread(values) for name, values in rewards.items()}, spread(total), scores.metrics, scores.extra
    )


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _seed(*parts: int) -> int:
    return int.from_bytes(blake3(repr(parts).encode()).digest(length=4), "little")
