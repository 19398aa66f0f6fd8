"""An evaluator's rewards of a model's completions, and of the rows' own completions (the ceiling)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.evaluate.estimates import distinct, mean_reward, pass_at
from tasks.evaluate.kept import Kept
from tasks.evaluate.questions import Messages, Question
from tasks.evaluate.spec import EvaluatorSpec
from tasks.evaluate.subject import Subject
from tasks.job import Job
from tasks.metric import Metric
from tasks.rewards.call import text_of
from tasks.rewards.scorer import Scorer
from tasks.rewards.spec import RewardSpec
from tasks.rows.stored import reward_columns

if TYPE_CHECKING:
    from tasks.evaluate.answer import Answer

COMPLETIONS_A_CALL = 256  # of the rewards: their time limits are for a call

Rewards = dict[str, list[list[float | None]]]  # by reward: of each prompt, of each of its completions


@dataclass(frozen=True)
class Completion:
    """A completion that is to be scored."""

    question: Question
    completion: str | Messages
    tokens: list[int]


@dataclass(frozen=True)
class Rewarded:
    questions: Sequence[Question]
    answers: Sequence[Sequence["Answer"]]
    rewards: Rewards
    ceiling: dict[str, float]  # of the metrics that the rows' own completions have

    def metrics(self, spec: EvaluatorSpec) -> dict[str, Metric]:
        """pass@k is of the first reward."""
        found = _metrics(self.rewards, [answer.text for each in self.answers for answer in each])
        first = next(iter(self.rewards.values()))
        return found | {f"pass@{k}": pass_at(k, first) for k in spec.pass_at}

    @property
    def ended(self) -> float:
        """The share of completions that ended before the length limit."""
        ended = [answer.ended for each in self.answers for answer in each]
        return sum(ended) / len(ended)

    def lines(self, evaluator: str) -> list[dict[str, Any]]:
        """A line for each completion."""
        return [
            {
                "evaluator": evaluator,
                "id": question.id,
                "prompt": question.prompt,
                "reference": question.reference,
                "completion": answer.text,
                "ended": answer.ended,
                "rewards": {name: values[row][column] for name, values in self.rewards.items()},
            }
            for row, (question, answers) in enumerate(zip(self.questions, self.answers, strict=True))
            for column, answer in enumerate(answers)
        ]


def rewarded(
    job: Job,
    name: str,
    spec: EvaluatorSpec,
    questions: Sequence[Question],
    answers: Sequence[Sequence["Answer"]],
    subject: Subject,
    kept: Kept,
) -> Rewarded:
    """Run the rewards on the answers, and on the references of the questions that have one."""
    said = [
        Completion(question, question.answer(answer.text), answer.tokens)
        for question, of in zip(questions, answers, strict=True)
        for answer in of
    ]
    gold = [
        Completion(each, each.reference, subject.tokens(text_of(each.reference)))
        for each in questions
        if each.reference is not None
    ]
    (of_model,) = kept.answer(lambda: [_score(job, name, spec.rewards, said, spec.samples)])
    (of_gold,) = kept.answer(lambda: [_score(job, name, spec.rewards, gold, 1)])
    found = _metrics(of_gold, [text_of(each.completion) for each in gold]) if gold else {}
    return Rewarded(questions, answers, of_model, {metric: each.value for metric, each in found.items()})


def _metrics(rewards: Rewards, texts: Sequence[str]) -> dict[str, Metric]:
    means = {name: mean_reward(values) for name, values in rewards.items()}
    return {name: mean for name, mean in means.items() if mean is not None} | {"distinct": distinct(texts)}


def _score(job: Job, name: str, specs: list[RewardSpec], said: Sequence[Completion], each: int) -> Rewards:
    """Of completions, `each` of one question next to each other."""
    found: dict[str, list[float | None]] = {spec.label: [] for spec in specs}
    columns = reward_columns([one.question.scored for one in said])
    with Scorer(specs) as scorer:
        for begin in range(0, len(said), COMPLETIONS_A_CALL):
            job.progress(begin, len(said), "completions", now=f"rewards of {name}")
            end = begin + COMPLETIONS_A_CALL
            scores = scorer.score(
                [one.question.prompt for one in said[begin:end]],
                [one.completion for one in said[begin:end]],
                {column: values[begin:end] for column, values in columns.items()},
                completion_ids=[one.tokens for one in said[begin:end]],
            )
            for reward, values in scores.rewards.items():
                found[reward] += values
    return {reward: [values[at : at + each] for at in range(0, len(values), each)] for reward, values in found.items()}
