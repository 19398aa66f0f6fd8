"""What the rewards say of completions, called with the rows that these answer."""

from collections.abc import Callable, Mapping, Sequence

from tasks.rewards.gold import check_gold, table
from tasks.rewards.scorer import Scorer, Scores
from tasks.rewards.spec import RewardSpec
from tasks.rows.stored import Row, reward_columns


def try_on_gold(rewards: Sequence[RewardSpec], rows: Sequence[Row], encode: Callable[[str], list[int]]) -> None:
    """Before anything is sampled: the rows' own answers must be worth more than those of other rows. `encode` makes
    the tokens of an answer. Raises StageError."""
    if lines := check_gold(rewards, rows, encode):
        print(table(lines), flush=True)


def score(
    scorer: Scorer,
    rows: Sequence[Row],
    texts: Sequence[str],
    completion_ids: Sequence[Sequence[int]],
    state: Mapping[str, float] | None = None,
) -> Scores:
    """`rows` and `texts` have one item for each completion. As in TRL, a completion of a prompt that is a list of
    messages is one too."""
    completions = [
        [{"role": "assistant", "content": text}] if isinstance(row["prompt"], list) else text
        for row, text in zip(rows, texts, strict=True)
    ]
    return scorer.score(
        [row["prompt"] for row in rows], completions, reward_columns(rows), completion_ids=completion_ids, state=state
    )


def mean(values: Sequence[float | None]) -> float | None:
    """Of those that there are."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
