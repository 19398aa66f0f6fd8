"""What an evaluator's rewards say of a model's completions, and of the rows' own: the ceiling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.evaluate.estimates import distinct, mean_reward, pass_at
from tasks.evaluate.kept import Kept
from tasks.evaluate.questions import Question, Said
from tasks.evaluate.spec import EvaluatorSpec
from tasks.job import Job
from tasks.metric import Metric
from tasks.rewards.builtin.builtin import text_of
from tasks.rewards.scorer import Scorer
from tasks.rewards.spec import RewardSpec
from tasks.rows.stored import reward_columns

if TYPE_CHECKING:
    from tasks.evaluate.answer import Answer

COMPLETIONS_A_CALL = 256  # of the rewards: their time limits are for a call

Rewards = dict[str, list[list[float | None]]]  # by reward: of each prompt, of each of its completions


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
        """The share of completions that came to an end by themselves."""
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
    kept: Kept,
) -> Rewarded:
    """Run the rewards on the answers, and on the references of the questions that have one."""
    said = [[question.answer(each.text) for each in of] for question, of in zip(questions, answers, strict=True)]
    with_gold = [each for each in questions if each.reference is not None]
    gold = [[each.reference] for each in with_gold if each.reference is not None]
    (of_model,) = kept.answer(lambda: [_score(job, name, spec.rewards, questions, said)])
    (of_gold,) = kept.answer(lambda: [_score(job, name, spec.rewards, with_gold, gold) if gold else {}])
    found = _metrics(of_gold, [text_of(each) for (each,) in gold]) if gold else {}
    return Rewarded(questions, answers, of_model, {metric: each.value for metric, each in found.items()})


def _metrics(rewards: Rewards, texts: Sequence[str]) -> dict[str, Metric]:
    means = {name: mean_reward(values) for name, values in rewards.items()}
    return {name: mean for name, mean in means.items() if mean is not None} | {"distinct": distinct(texts)}


def _score(
    job: Job, name: str, specs: list[RewardSpec], questions: Sequence[Question], said: Sequence[Sequence[Said]]
) -> Rewards:
    asked = [(question, text) for question, texts in zip(questions, said, strict=True) for text in texts]
    found: dict[str, list[float | None]] = {}
    with Scorer(specs) as scorer:
        for begin in range(0, len(asked), COMPLETIONS_A_CALL):
            job.progress(begin, len(asked), "completions", now=f"rewards of {name}")
            batch = asked[begin : begin + COMPLETIONS_A_CALL]
            prompts, completions = [question.prompt for question, _ in batch], [text for _, text in batch]
            scores = scorer.score(prompts, completions, _columns([question for question, _ in batch]))
            for reward, values in scores.rewards.items():
                found.setdefault(reward, []).extend(values)
    each = len(said[0])
    return {reward: [values[at : at + each] for at in range(0, len(values), each)] for reward, values in found.items()}


def _columns(questions: Sequence[Question]) -> dict[str, list[Any]]:
    """The rows' columns beyond TRL's own, and the rows' own completions where they have any."""
    rows = [
        reward_columns(each.row) | ({"completion": each.reference} if each.reference is not None else {})
        for each in questions
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}
