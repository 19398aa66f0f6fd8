"""The record of a conversation with an environment or tools in an evaluation."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from baton.infra.evaluated import known_mean
from baton.tasks.core.metric import Metric
from baton.tasks.evaluate.questions import Messages


class Played(NamedTuple):
    """A finished conversation."""

    text: str  # the model's turns and the answers to its calls, as the model sees them
    ended: bool  # whether a turn of the model without a call ended it
    tokens: list[int]
    prompt: Messages  # with the result of the environment's reset
    messages: Messages
    turns: int
    calls: int
    errors: int  # calls that failed
    state: dict[str, Any]  # final state of the environment
    reward: float | None  # result of get_reward
    lost: str  # the reason if there is no state


def metrics_of_turns(played: Sequence[Sequence[Played]]) -> dict[str, Metric]:
    """Return means per conversation, and the share of calls that failed."""
    everyone = [one for some in played for one in some]
    calls, errors = sum(one.calls for one in everyone), sum(one.errors for one in everyone)
    lost = sum(bool(one.lost) for one in everyone)
    return {
        "turns": Metric.mean([known_mean([one.turns for one in some]) for some in played], higher_is_better=False),
        "tool_calls": Metric.mean([known_mean([one.calls for one in some]) for some in played], higher_is_better=False),
        "tool_errors": Metric(errors / calls if calls else 0.0, None, calls, "share", higher_is_better=False),
        "environments_lost": Metric(lost / len(everyone), None, len(everyone), "share", higher_is_better=False),
    }
