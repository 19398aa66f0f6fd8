"""Check before training that each reward scores a row's own answer higher than other rows' answers.

    for line in check_gold(rewards, rows): …      # raises StageError with the table if one doesn't
    lines = gold_lines(rewards, rows)             # the same without an error; `faults(lines)` describes those that
    don't

A row's own answer is its `completion`, or else the first of `answer`, `solution`, `ground_truth` that is text or a
number. A reward that compares with a column of the rows (it has a parameter of that name, or `gold: true`) must score
own answers higher. Others, such as length or format, are only listed in the table, unless their score of the same text
differs between rows and is lower for own answers. `gold: false` excludes a reward.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

from baton.tasks.core.job import StageError
from baton.tasks.rewards.builtin.builtin import ANSWERS
from baton.tasks.rewards.call import ENVIRONMENTS, text_of
from baton.tasks.rewards.scorer import Scorer
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.rows.marks import verdict

ROWS = 64  # enough to distinguish right from wrong, with few requests to a judge
_WAYS_OUT = (
    "Fix the function (or its column), give the rows a `completion` written as a model should answer, or set "
    "`gold: false` for a reward that doesn't measure correctness."
)


@dataclass(frozen=True)
class GoldLine:
    """One reward's mean scores of the rows' own answers and of other rows' answers."""

    reward: str
    own: float | None  # None if the reward applies to none of the rows
    others: float | None
    rows: int  # number of rows that the reward applies to
    fault: str = ""
    example: str = ""  # a row scored wrongly


def check_gold(
    rewards: Sequence[RewardSpec], rows: Iterable[Mapping[str, Any]], encode: Callable[[str], list[int]] | None = None
) -> list[GoldLine]:
    """Score own and other answers (`gold_lines`). Raises StageError for a reward that doesn't distinguish them."""
    lines = gold_lines(rewards, rows, encode)
    if text := faults(lines):
        raise StageError(text)
    return lines


def gold_lines(
    rewards: Sequence[RewardSpec], rows: Iterable[Mapping[str, Any]], encode: Callable[[str], list[int]] | None = None
) -> list[GoldLine]:
    """Score own and other answers. Return one line per reward, or none if the rows have fewer than two distinct
    answers. `encode` tokenizes text for rewards that need completion_ids; without it, those are skipped, as are those
    that need an environment. Raises StageError if a reward fails."""
    known_rows = list(islice(rows, ROWS))
    known = [(row, answer) for row in known_rows if (answer := own_answer(row)) is not None and "prompt" in row]
    pairs = [(row, answer, other) for row, answer in known if (other := _other(row, known)) is not None]
    checked = [reward for reward in rewards if reward.gold or (reward.gold is None and _may_compare(reward))]
    if not pairs or not checked:
        return []
    prompts = [row["prompt"] for row, _, _ in pairs]
    columns = _columns([row for row, _, _ in pairs])
    with Scorer(checked) as scorer:
        usable = _usable(checked, scorer, encode is not None)
        labels = [reward.label for reward in usable]

        def score(answers: list[Any]) -> dict[str, list[float | None]]:
            ids = [encode(text_of(answer)) for answer in answers] if encode else None
            return scorer.score(prompts, answers, columns, completion_ids=ids, only=labels).rewards

        own_scores, other_scores = score([answer for _, answer, _ in pairs]), score([other for _, _, other in pairs])
        parameters = scorer.columns
    lines = []
    for reward in usable:
        must = reward.gold or reward.builtin is not None or bool(columns.keys() & parameters[reward.label].keys())
        lines.append(_line(reward.label, must, pairs, own_scores[reward.label], other_scores[reward.label]))
    return lines


def attempt(
    rewards: Sequence[RewardSpec], rows: Sequence[Mapping[str, Any]], answer: Callable[[Mapping[str, Any]], Any]
) -> None:
    """Score one completion of each row, and ignore the scores. Raises StageError if a reward fails."""
    if not rewards or not rows:
        return
    with Scorer(rewards) as scorer:
        labels = [reward.label for reward in _usable(rewards, scorer, tokens=False)]
        scorer.score([row["prompt"] for row in rows], [answer(row) for row in rows], _columns(rows), only=labels)


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = {name for row in rows for name in row} - {"prompt"}
    return {name: [row.get(name) for row in rows] for name in sorted(names)}


def _usable(rewards: Sequence[RewardSpec], scorer: Scorer, tokens: bool) -> list[RewardSpec]:
    """Return the rewards that need no environment and, without `tokens`, no token ids."""
    cannot = {ENVIRONMENTS} if tokens else {ENVIRONMENTS, "completion_ids"}
    return [reward for reward in rewards if not any(map(scorer.columns[reward.label].get, cannot))]


def faults(lines: Sequence[GoldLine]) -> str:
    """Return a description of faulty rewards with advice, or "" if each reward that must prefers own answers."""
    wrong = [line for line in lines if line.fault]
    return f"{table(lines)}\n{wrong[0].example}{_WAYS_OUT}" if wrong else ""


def early(reward: RewardSpec) -> bool:
    """Return whether a reward can be tried before the stage that uses it: it needs no server, and no variables of that
    stage's environment."""
    return reward.judge is None and not reward.environment


def late(rewards: Sequence[RewardSpec]) -> list[RewardSpec]:
    """Return the rewards that an early trial, which has no tokenizer, may have skipped."""
    return [
        reward
        for reward in rewards
        if not early(reward)
        or (reward.function and any("completion_ids" in text for text in (reward.function.source or {"": ""}).values()))
        or (reward.function and reward.function.source is None)
    ]


def own_answer(row: Mapping[str, Any]) -> Any:
    """Return a row's own answer as a completion (messages if its prompt is messages), or None if it has no answer, or
    if its label is false, which marks a completion to avoid."""
    avoided = verdict(row) is False
    for name in (name for name in ("completion", *ANSWERS) if not (avoided and name == "completion")):
        value = row.get(name)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return value
        if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
            text = str(value)
            return [{"role": "assistant", "content": text}] if isinstance(row.get("prompt"), list) else text
    return None


def table(lines: Sequence[GoldLine]) -> str:
    """Format the lines as a text table."""
    width = max(len(line.reward) for line in lines)
    shown = [f"{'reward':{width}}  {'own answers':>12}  {'of other rows':>13}  {'rows':>5}"]
    for line in lines:
        own_mean, other_mean = ("-" if value is None else f"{value:.4g}" for value in (line.own, line.others))
        shown.append(f"{line.reward:{width}}  {own_mean:>12}  {other_mean:>13}  {line.rows:>5}  {line.fault}".rstrip())
    return "rewards on the rows' own answers and on those of other rows:\n" + "\n".join(shown)


def _may_compare(reward: RewardSpec) -> bool:
    return reward.builtin is None or reward.builtin.compares()


def _other(row: Mapping[str, Any], known: Sequence[tuple[Mapping[str, Any], Any]]) -> Any:
    """Return the answer of the next row whose answer differs."""
    at = next(index for index, (one, _) in enumerate(known) if one is row)
    answer = known[at][1]
    return next((other for _, other in (*known[at + 1 :], *known[:at]) if other != answer), None)


def _line(
    name: str,
    must: bool,
    pairs: Sequence[tuple[Mapping[str, Any], Any, Any]],
    own_scores: Sequence[float | None],
    other_scores: Sequence[float | None],
) -> GoldLine:
    both = [
        (mine, other, pair)
        for mine, other, pair in zip(own_scores, other_scores, pairs, strict=True)
        if mine is not None and other is not None
    ]
    if not both:
        return GoldLine(name, None, None, 0)
    first, second = fmean(mine for mine, _, _ in both), fmean(other for _, other, _ in both)
    by_text = {repr(pair[1]): mine for mine, _, pair in both}
    by_row = any(by_text.get(repr(pair[2]), other) != other for _, other, pair in both)
    fault = "not higher" if must and first <= second else "lower" if by_row and first < second else ""
    wrong = min(both, key=lambda scores: scores[0] - scores[1])
    example = (
        f"Reward {name} gives {wrong[0]:g} to {wrong[2][1]!r:.100} for the prompt {wrong[2][0]['prompt']!r:.100}.\n"
    )
    return GoldLine(name, first, second, len(both), fault, example if fault else "")
