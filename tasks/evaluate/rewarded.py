"""Score a model's completions, and the rows' own completions (the ceiling), with an evaluator's rewards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from baton.tasks.core.job import Job
from baton.tasks.core.metric import Metric
from baton.tasks.evaluate.episodes import Played
from baton.tasks.evaluate.estimates import distinct, mean_reward, pass_at
from baton.tasks.evaluate.model_info import ModelInfo
from baton.tasks.evaluate.questions import Messages, Question
from baton.tasks.evaluate.saved_answers import SavedAnswers
from baton.tasks.evaluate.spec import EvaluatorSpec
from baton.tasks.posttrain.encode import RowEncoder
from baton.tasks.rewards.call import ENVIRONMENTS, text_of
from baton.tasks.rewards.scorer import Scorer, refuse_reserved
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.rewards.thinking import Thinking, ThinkingCounts, with_beginning, without_thoughts
from baton.tasks.rows.stored import reward_columns

if TYPE_CHECKING:
    from baton.tasks.evaluate.answer import Answer

Answers = Sequence[Sequence["Answer | Played"]]  # the answers to each question

COMPLETIONS_A_CALL = 256  # a reward's time limit is per call

Rewards = dict[str, list[list[float | None]]]  # reward -> (prompts, completions)


@dataclass(frozen=True)
class Completion:
    """A completion to score."""

    prompt: str | Messages
    completion: str | Messages
    tokens: list[int]
    row: dict[str, Any]  # the row as rewards get it
    begun: str = ""  # the beginning of a thought at the prompt's end


@dataclass(frozen=True)
class Rewarded:
    questions: Sequence[Question]
    answers: Answers
    rewards: Rewards
    ceiling: dict[str, float]  # metric -> value for the rows' own completions
    thoughts: ThinkingCounts

    def metrics(self, spec: EvaluatorSpec) -> dict[str, Metric]:
        """Return mean rewards, `distinct`, and pass@k of the first reward."""
        means = _metrics(self.rewards, [answer.text for answers in self.answers for answer in answers])
        first = next(iter(self.rewards.values()))
        return means | {f"pass@{k}": passes for k in spec.pass_at if (passes := pass_at(k, first)) is not None}

    @property
    def ended(self) -> float:
        """Fraction of completions that ended before the length limit."""
        ended = [answer.ended for answers in self.answers for answer in answers]
        return sum(ended) / len(ended)

    def lines(self, evaluator: str) -> list[dict[str, Any]]:
        """Return one line per completion."""
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
    """Load an evaluator's rewards once, so that unusable ones (an import, a sandbox) fail before sampling. Raises
    StageError."""
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
    """Score the answers, and the references of the questions that have one. `reward_name`: the environment's
    get_reward, which has no value for references, since these were not produced in an environment."""
    refuse_reserved([question.row for question in questions])
    encoder, thinking, thoughts = info.encoder, Thinking.of(spec.think_end), ThinkingCounts(spec.think_end or "")
    for reward in spec.rewards:
        leaves_out = spec.think_end or (reward.builtin and reward.builtin.reads_answers)
        (thoughts.rewards if leaves_out else thoughts.others).append(reward.label)
    sampled = []
    for question, samples in zip(questions, answers, strict=True):
        begun = thinking.opened(encoder.ending(question.tokens))
        for answer in samples:
            one = _completion(question, answer, begun)
            text = answer.text if isinstance(answer, Played) else begun + answer.text
            if spec.rewards:
                thoughts.note(thinking, text)
            sampled.append(_scored(one, thinking, encoder) if one and spec.think_end else one)
    gold: list[Completion | None] = [
        Completion(question.prompt, question.reference, encoder.ended(text_of(question.reference)), question.scored)
        for question in questions
        if question.reference is not None and not spec.uses_tools()
    ]
    if spec.think_end:
        gold = [_scored(one, thinking, encoder) for one in gold if one]
    (rewards,) = saved.answer(lambda: [_score(job, name, spec.rewards, sampled, spec.samples)])
    (gold_rewards,) = saved.answer(lambda: [_score(job, name, spec.rewards, gold, 1)])
    if reward_name:
        rewards = rewards | {reward_name: [[one.reward for one in each if isinstance(one, Played)] for each in answers]}
    for never in [reward for reward, values in rewards.items() if mean_reward(values) is None]:
        job.notice(
            f"evaluate.{name}: the reward {never} is None for all {len(sampled):,} completions: it has no metric. "
            "Check the columns of the rows that it reads",
            invalidates=True,
        )
    ceiling = _metrics(gold_rewards, [text_of(one.completion) for one in gold if one]) if gold else {}
    return Rewarded(questions, answers, rewards, {key: metric.value for key, metric in ceiling.items()}, thoughts)


def _scored(one: Completion, thinking: Thinking, encoder: RowEncoder) -> Completion:
    """Remove thoughts, whose end the evaluator's `think_end` defines, from a completion for all rewards."""
    answer = without_thoughts(thinking, with_beginning(one.completion, one.begun))
    tokens = one.tokens if answer == one.completion else encoder.ended(text_of(answer))
    return replace(one, completion=answer, tokens=tokens, begun="")


def _completion(question: Question, answer: "Answer | Played", begun: str) -> Completion | None:
    """Return the completion of an answer, or None if its environment is lost, so that there is nothing to score."""
    if not isinstance(answer, Played):
        return Completion(question.prompt, question.answer(answer.text), answer.tokens, question.scored, begun)
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
    """Score completions; every `samples` consecutive ones answer the same question. The reward is None where there is
    no completion."""
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
                begun=[one.begun for one in batch],
            )
            for reward, values in scores.rewards.items():
                scored[reward] += values
    rewards: Rewards = {}
    for reward, values in scored.items():
        remaining = iter(values)
        spread = [next(remaining) if one else None for one in completions]
        rewards[reward] = [spread[at : at + samples] for at in range(0, len(spread), samples)]
    return rewards
