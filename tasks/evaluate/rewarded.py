"""Score a model's completions with an evaluator's rewards, and the rows' own completions (the ceiling)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.core.job import Job
from tasks.core.metric import Metric
from tasks.evaluate.episodes import Played
from tasks.evaluate.estimates import distinct, mean_reward, pass_at
from tasks.evaluate.model_info import ModelInfo
from tasks.evaluate.questions import Messages, Question
from tasks.evaluate.saved_answers import SavedAnswers
from tasks.evaluate.spec import EvaluatorSpec
from tasks.rewards.call import ENVIRONMENTS, text_of
from tasks.rewards.scorer import Scorer, refuse_reserved
from tasks.rewards.spec import RewardSpec
from tasks.rows.stored import reward_columns

if TYPE_CHECKING:
    from tasks.evaluate.answer import Answer

Answers = Sequence[Sequence["Answer | Played"]]  # by question

COMPLETIONS_A_CALL = 256  # a reward's time limit is per call

Rewards = dict[str, list[list[float | None]]]  # reward -> (prompts, completions)


@dataclass(frozen=True)
class Completion:
    """A completion to score."""

    prompt: str | Messages
    completion: str | Messages
    tokens: list[int]
    row: dict[str, Any]  # as rewards see it


@dataclass(frozen=True)
class Rewarded:
    questions: Sequence[Question]
    answers: Answers
    rewards: Rewards
    ceiling: dict[str, float]  # metric -> value for the rows' own completions

    def metrics(self, spec: EvaluatorSpec) -> dict[str, Metric]:
        """Mean rewards, `distinct`, and pass@k of the first reward."""
        means = _metrics(self.rewards, [answer.text for answers in self.answers for answer in answers])
        first = next(iter(self.rewards.values()))
        return means | {f"pass@{k}": passes for k in spec.pass_at if (passes := pass_at(k, first)) is not None}

    @property
    def ended(self) -> float:
        """Fraction of completions that ended before the length limit."""
        ended = [answer.ended for answers in self.answers for answer in answers]
        return sum(ended) / len(ended)

    def lines(self, evaluator: str) -> list[dict[str, Any]]:
        """One line per completion."""
        return [
            {
                "evaluator": evaluator,
                "id": question.id,
                "reference": question.reference,
                **_shown(question, answer),
                "ended": answer.ended,
                "rewards": {name: values[row][column] for name, values in self.rewards.items()},
            }
            for row, (question, answers) in enumerate(zip(self.questions, self.answers, strict=True))
            for column, answer in enumerate(answers)
        ]


def start_rewards(spec: EvaluatorSpec) -> None:
    """Load an evaluator's rewards once, so that one that cannot be used (an import, a sandbox) fails before sampling.
    Raises StageError."""
    with Scorer(spec.rewards):
        pass


def rewarded(
    job: Job,
    name: str,
    spec: EvaluatorSpec,
    questions: Sequence[Question],
    answers: Answers,
    info: ModelInfo,
    saved: SavedAnswers,
    reward_name: str | None = None,
) -> Rewarded:
    """Run the rewards on the answers, and on the references of the questions that have one. `reward_name`: the
    environment's get_reward, which has no value for references, since these were not produced in an environment."""
    refuse_reserved([question.row for question in questions])
    sampled = [
        _completion(question, answer)
        for question, samples in zip(questions, answers, strict=True)
        for answer in samples
    ]
    ended = info.encoder.ended
    gold: list[Completion | None] = [
        Completion(question.prompt, question.reference, ended(text_of(question.reference)), question.scored)
        for question in questions
        if question.reference is not None and not spec.uses_tools()
    ]
    (rewards,) = saved.answer(lambda: [_score(job, name, spec.rewards, sampled, spec.samples)])
    (gold_rewards,) = saved.answer(lambda: [_score(job, name, spec.rewards, gold, 1)])
    if reward_name:
        rewards = rewards | {reward_name: [[one.reward for one in each if isinstance(one, Played)] for each in answers]}
    for never in [reward for reward, values in rewards.items() if mean_reward(values) is None]:
        job.notice(
            f"evaluate.{name}: the reward {never} is None for all {len(sampled):,} completions: it has no metric. "
            "Check the columns of the rows that it reads"
        )
    ceiling = _metrics(gold_rewards, [text_of(one.completion) for one in gold if one]) if gold else {}
    return Rewarded(questions, answers, rewards, {key: metric.value for key, metric in ceiling.items()})


def _completion(question: Question, answer: "Answer | Played") -> Completion | None:
    """None if its environment is lost: rewards have nothing to score then."""
    if not isinstance(answer, Played):
        return Completion(question.prompt, question.answer(answer.text), answer.tokens, question.scored)
    if answer.lost:
        return None
    return Completion(answer.prompt, answer.messages, answer.tokens, question.scored | {ENVIRONMENTS: answer.state})


def _shown(question: Question, answer: "Answer | Played") -> dict[str, Any]:
    if not isinstance(answer, Played):
        return {"prompt": question.prompt, "completion": answer.text}
    return {"prompt": answer.prompt, "completion": answer.messages, "lost": answer.lost}


def _metrics(rewards: Rewards, texts: Sequence[str]) -> dict[str, Metric]:
    means = {name: mean_reward(values) for name, values in rewards.items()}
    return {name: mean for name, mean in means.items() if mean is not None} | {"distinct": distinct(texts)}


def _score(
    job: Job, name: str, specs: list[RewardSpec], completions: Sequence[Completion | None], samples: int
) -> Rewards:
    """Score completions, of which every `samples` consecutive ones answer the same question; None where there is no
    completion."""
    present = [one for one in completions if one]
    scored: dict[str, list[float | None]] = {spec.label: [] for spec in specs}
    columns = reward_columns([one.row for one in present])
    with Scorer(specs) as scorer:
        scorer.refuse_partial([one.row for one in present])
        for begin in range(0, len(present), COMPLETIONS_A_CALL):
            job.progress(begin, len(present), "completions", now=f"rewards of {name}")
            end = begin + COMPLETIONS_A_CALL
            batch = present[begin:end]
            scores = scorer.score(
                [one.prompt for one in batch],
                [one.completion for one in batch],
                {column: values[begin:end] for column, values in columns.items()},
                completion_ids=[one.tokens for one in batch],
            )
            for reward, values in scores.rewards.items():
                scored[reward] += values
    rewards: Rewards = {}
    for reward, values in scored.items():
        remaining = iter(values)
        spread = [next(remaining) if one else None for one in completions]
        rewards[reward] = [spread[at : at + samples] for at in range(0, len(spread), samples)]
    return rewards
