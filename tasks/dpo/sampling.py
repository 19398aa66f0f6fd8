"""Preference pairs that a model makes itself: vLLM samples it on the rows' prompts, the rewards score what it says."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.dpo.pairs import Answer, Pair, Pairs, pair
from tasks.dpo.spec import DPOSpec, PairsSpec
from tasks.job import Job, StageError
from tasks.posttrain.encode import Encoder, prompted
from tasks.posttrain.rows import Chosen, choose, kind_of
from tasks.posttrain.score import mean, score, try_on_gold
from tasks.posttrain.spec import PROMPTED, Limits
from tasks.posttrain.trainer import ends
from tasks.rewards.scorer import Scorer
from tasks.rows.stored import Row, reward_columns
from tasks.serve.engine import open_engine, sample

PROMPTS_A_CALL = 256  # what is sampled and scored together


@dataclass(frozen=True)
class Asked:
    row: Row
    prompt_ids: list[int]
    gold_ids: list[int]  # the row's own completion, where that is the chosen one


def rows_to_ask(job: Job, spec: DPOSpec, how: PairsSpec, encoder: Encoder, limits: Limits) -> Chosen[Asked]:
    """The rows whose prompts are sampled. Raises StageError."""
    gold = how.chosen == "gold"
    if kind_of(job, *PROMPTED) == "prompt" and gold:
        raise StageError(
            "pairs.chosen: gold needs rows with a completion, and the rows of this set have a prompt alone; "
            "say chosen: best, with 2 or more samples"
        )

    def encode(row: Row) -> Asked:
        row = prompted(row)
        return Asked(row, *encoder.completion(row)) if gold else Asked(row, encoder.prompt(row), [])

    def tokens(asked: Asked) -> tuple[int, int]:
        return len(asked.prompt_ids), len(asked.gold_ids)

    return choose(job, spec.seed, limits, encode, tokens, how.prompts)


def make_pairs(
    job: Job, spec: DPOSpec, how: PairsSpec, encoder: Encoder, limits: Limits, asked: Sequence[Asked], model: Any
) -> Pairs:
    """Raises StageError when there is none."""
    try_on_gold(how.rewards, [each.row for each in asked], encoder.ended)
    found: list[Pair] = []
    rewards: dict[str, list[float | None]] = {}
    with Scorer(how.rewards) as scorer:
        llm = open_engine(
            job.input("model"), max_model_len=limits.total, seed=spec.seed, gpu_memory_share=how.gpu_memory_share
        )
        for begin in range(0, len(asked), PROMPTS_A_CALL):
            job.progress(begin, len(asked), "prompts")
            some = asked[begin : begin + PROMPTS_A_CALL]
            answers = sample(
                llm,
                [each.prompt_ids for each in some],
                temperature=how.temperature,
                max_tokens=limits.new,
                n=how.samples,
                stop_token_ids=ends(model, encoder.tokenizer, encoder.chat),
            )
            rows = [each.row for each in some for _ in range(how.samples)]
            ids = [answer.token_ids for answer in answers]
            scores = score(scorer, rows, list(map(encoder.said, ids)), ids)
            for name, values in scores.rewards.items():
                rewards.setdefault(name, []).extend(values)
            own = [Answer(list(each.token_ids), worth) for each, worth in zip(answers, scores.total, strict=True)]
            golds = _golds(scorer, some) if how.chosen == "gold" else [None] * len(some)
            for number, (each, gold) in enumerate(zip(some, golds, strict=True)):
                made = pair(each.prompt_ids, own[number * how.samples : (number + 1) * how.samples], gold)
                found += [made] if made else []
    del llm
    gc.collect()  # the engine's memory is wanted for training
    if not found:
        other = "the row's own" if how.chosen == "gold" else "another"
        raise StageError(
            f"by these rewards no completion of the {len(asked)} prompts is worse than {other}: there is nothing to "
            f"prefer. Give other rewards or more samples (now {how.samples}), or leave DPO out"
        )
    means = {name: value for name, values in rewards.items() if (value := mean(values)) is not None}
    return Pairs(found, sampled=len(asked), rewards=means)


def _golds(scorer: Scorer, asked: Sequence[Asked]) -> list[Answer | None]:
    """The rows' own completions and what they are worth."""
    rows = [each.row for each in asked]
    scores = scorer.score(
        [row["prompt"] for row in rows],
        [row["completion"] for row in rows],
        reward_columns(rows),
        completion_ids=[each.gold_ids for each in asked],
    )
    return [Answer(each.gold_ids, worth) for each, worth in zip(asked, scores.total, strict=True)]
