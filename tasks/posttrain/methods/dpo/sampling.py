"""Sample preference pairs from a model: vLLM completes the rows' prompts, and rewards score the completions."""

from collections.abc import Sequence
from pathlib import Path

from baton.infra.evaluated import known_mean
from baton.tasks.core.job import StageError
from baton.tasks.posttrain.methods.dpo.pairs import Pair, Pairs, ScoredCompletion, pair
from baton.tasks.posttrain.methods.dpo.spec import DPOSpec, PairsSpec
from baton.tasks.posttrain.rows import Chosen, kind_of
from baton.tasks.posttrain.score import score, try_on_gold
from baton.tasks.posttrain.spec import PROMPTED, Prompt
from baton.tasks.posttrain.trainer import Setup, ends
from baton.tasks.rewards.scorer import Scorer, refuse_reserved
from baton.tasks.rewards.thinking import Thinking
from baton.tasks.vllm.engine import close_engines, open_engine, sample
from baton.tasks.vllm.hooks import leave_transformers_alone

PROMPTS_A_CALL = 256  # prompts sampled and scored together


def choose_prompts(setup: Setup[DPOSpec], sampling: PairsSpec) -> Chosen[Prompt]:
    """Select the prompts whose completions are sampled. Raises StageError."""
    kind = kind_of(setup.job, *PROMPTED)
    if kind == "prompt" and sampling.chosen == "gold":
        raise StageError(
            "pairs.chosen: gold needs rows with a completion, but the rows of this set have only a prompt; "
            "use chosen: best, with 2 or more samples"
        )
    return setup.choose(kind, sampling.prompts)


def make_pairs(setup: Setup[DPOSpec], sampling: PairsSpec, prompts: Sequence[Prompt]) -> Pairs:
    """Sample and score completions, and pair them. Raises StageError if there is no pair."""
    model, encoder, limits = setup.model, setup.encoder, setup.limits
    try_on_gold(sampling.rewards, [prompt.row for prompt in prompts], encoder.ended, sampling.rewards_tried)
    pairs: list[Pair] = []
    rewards: dict[str, list[float | None]] = {}
    with Scorer(sampling.rewards) as scorer:
        refuse_reserved(used := [prompt.row for prompt in prompts])
        scorer.refuse_partial(used)
        leave_transformers_alone()  # the trained model has the same class
        llm = open_engine(
            Path(model.name_or_path),
            max_model_len=limits.total,
            seed=setup.spec.seed,
            gpu_memory_share=sampling.gpu_memory_share,
        )
        for begin in range(0, len(prompts), PROMPTS_A_CALL):
            setup.job.progress(begin, len(prompts), "prompts")
            batch = prompts[begin : begin + PROMPTS_A_CALL]
            completions = sample(
                llm,
                [prompt.ids for prompt in batch],
                temperature=sampling.temperature,
                max_tokens=limits.new,
                n=sampling.samples,
                stop_token_ids=ends(model, encoder),
            )
            rows = [prompt.row for prompt in batch for _ in range(sampling.samples)]
            ids = [completion.token_ids for completion in completions]
            begun = [Thinking().opened(encoder.ending(prompt.ids)) for prompt in batch for _ in range(sampling.samples)]
            scores = score(scorer, rows, list(map(encoder.decoded, ids)), ids, begun=begun)
            for name, values in scores.rewards.items():
                rewards.setdefault(name, []).extend(values)
            answers = [ScoredCompletion(list(tokens), total) for tokens, total in zip(ids, scores.total, strict=True)]
            golds = _golds(scorer, batch) if sampling.chosen == "gold" else [None] * len(batch)
            for number, (prompt, gold) in enumerate(zip(batch, golds, strict=True)):
                new_pair = pair(prompt.ids, answers[number * sampling.samples : (number + 1) * sampling.samples], gold)
                pairs += [new_pair] if new_pair else []
    del llm
    close_engines()  # training needs their memory
    if not pairs:
        other = "the row's own" if sampling.chosen == "gold" else "another"
        raise StageError(
            f"by these rewards no completion of the {len(prompts)} prompts is worse than {other}: there are no pairs "
            f"to learn. Use other rewards or more samples (now {sampling.samples}), or omit DPO"
        )
    means = {name: value for name, values in rewards.items() if (value := known_mean(values)) is not None}
    return Pairs(pairs, sampled=len(prompts), rewards=means)


def _golds(scorer: Scorer, prompts: Sequence[Prompt]) -> list[ScoredCompletion | None]:
    """Return the rows' own completions with their rewards."""
    rows, ids = [prompt.row for prompt in prompts], [prompt.answer for prompt in prompts]
    scores = score(scorer, rows, [row["completion"] for row in rows], ids)
    return [ScoredCompletion(tokens, total) for tokens, total in zip(ids, scores.total, strict=True)]
