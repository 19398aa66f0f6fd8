"""Score completions of rows with rewards."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

from baton.infra.process.heartbeat import Heartbeat
from baton.tasks.posttrain import process
from baton.tasks.rewards.gold import check_gold, late, table
from baton.tasks.rewards.scorer import Scorer, Scores
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.rows.stored import Row, reward_columns


def reserved(names: Iterable[str], metrics: Mapping[str, str]) -> str:
    """Return the names that training's `metrics` (TRL's name -> ours) or the fields of metrics.jsonl already use,
    joined."""
    return ", ".join(sorted(set(names) & {*metrics.values(), "step", "time", "memory_gb"}))


def try_on_gold(
    rewards: Sequence[RewardSpec], rows: Sequence[Row], encode: Callable[[str], list[int]], tried: bool
) -> None:
    """Check, before sampling, that the rows' own answers score higher than those of other rows. `encode` tokenizes an
    answer; with `tried`, only the rewards that could not be tried before the run are checked. Raises StageError."""
    if lines := check_gold(late(rewards) if tried else rewards, rows, encode):
        print(table(lines), flush=True)


def score(
    scorer: Scorer,
    rows: Sequence[Row],
    texts: Sequence[str | list[Row]],
    completion_ids: Sequence[Sequence[int]],
    state: Mapping[str, float] | None = None,
    begun: Sequence[str] = (),
) -> Scores:
    """Score completions; `rows` and `texts` have one item per completion. As in TRL, the completion of a prompt of
    messages is a list of messages. `begun`: for each prompt that ends within a thought, the beginning of that
    thought."""
    completions = [
        [{"role": "assistant", "content": text}] if isinstance(row["prompt"], list) and isinstance(text, str) else text
        for row, text in zip(rows, texts, strict=True)
    ]
    return scorer.score(
        [row["prompt"] for row in rows],
        completions,
        reward_columns(rows),
        completion_ids=completion_ids,
        state=state,
        begun=begun,
    )


def of_all_ranks(reward: Callable[..., list[float | None]], heart: Heartbeat) -> Callable[..., list[float | None]]:
    """Return a reward function with TRL's signature that rank 0 calls with the completions of all ranks, in the order
    of one process, since a reward may compare completions or remember some. The other lists, which have one item per
    completion, are gathered too."""

    @wraps(reward)
    def scored(trainer_state: Any, **given: Any) -> list[float | None]:
        columns = {name: values for name, values in given.items() if isinstance(values, list)}
        others = {name: value for name, value in given.items() if name not in columns}

        def together(asked: list[tuple[Any, ...]]) -> list[float | None]:
            gathered = dict(zip(columns, map(list, zip(*asked, strict=True)), strict=True))
            with heart.repeated():  # the rewards have their own time limits
                return reward(**gathered, trainer_state=trainer_state, **others)

        heart.beat(trainer_state.global_step, "rewards")
        return process.on_first(together, list(zip(*columns.values(), strict=True)))

    return scored
