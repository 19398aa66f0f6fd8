"""GRPO with TRL, with rollouts from a live vLLM engine.

In each step vLLM loads the newest weights and samples several completions per prompt, the rewards score them in a
subprocess, and TRL updates the model. Training is on-policy, with one update per rollout. Each process has its own vLLM
engine and samples its share of the completions, unless there are rollout servers; rank 0 scores all of them in one
call. With an environment or tools, a completion is a conversation of the model's turns and the answers to its calls.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import cycle, islice
from statistics import fmean
from typing import Any

from datasets import Dataset
from trl import GRPOConfig

from baton.infra.evaluated import known_mean
from baton.tasks.core.job import Job, StageError, json_lines
from baton.tasks.environments.environments import Environments
from baton.tasks.posttrain import process
from baton.tasks.posttrain.adapter import base_of
from baton.tasks.posttrain.encode import RowEncoder
from baton.tasks.posttrain.methods.grpo.conversations import about, score_conversations, with_tools
from baton.tasks.posttrain.methods.grpo.rollout_node import open_servers
from baton.tasks.posttrain.methods.grpo.rollout_servers import RolloutServers
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.rows import kind_of
from baton.tasks.posttrain.score import of_all_ranks, reserved, score, try_on_gold
from baton.tasks.posttrain.spec import TRAINING, LengthLimits, Prompt
from baton.tasks.posttrain.tool_calls import ToolCalls
from baton.tasks.posttrain.trainer import LOGGED, ends, prepare
from baton.tasks.posttrain.trl_hooks.grpo import ServedGeneration, TokenTrainer, colocated, generate_live
from baton.tasks.posttrain.trl_hooks.shared_prompts import share_prompts
from baton.tasks.posttrain.trl_hooks.turns import rollouts
from baton.tasks.posttrain.turns import Conversation
from baton.tasks.rewards.scorer import Scorer, refuse_reserved
from baton.tasks.rewards.thinking import Thinking
from baton.tasks.rows.stored import Row

EQUAL = "equal_groups"  # share of a step's groups whose rewards are all equal: they have no advantages
WITHOUT = "without_reward"  # share of a step's completions to which no reward applies: they have no advantages either
MOST_EQUAL, MOST_CUT_OFF = 0.8, 0.2  # the largest shares over a run that cause no notice
METRICS = TRAINING | {
    "reward": "reward",
    "reward_std": "reward_std",
    "kl": "kl",
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "cut_off",
    "rollout_mismatch": "rollout_mismatch",
    f"{LOGGED}{EQUAL}": EQUAL,
    f"{LOGGED}{WITHOUT}": WITHOUT,
    "turns": "turns",
    "tool_calls": "tool_calls",
    "tool_errors": "tool_errors",
    "environments_lost": "environments_lost",
}


def train(job: Job) -> None:
    spec = job.spec(GRPOSpec)
    with (
        Environments(spec, job.heart.repeated) if spec.uses_tools() else nullcontext() as environments,
        open_servers(job, spec) if process.is_first() else nullcontext() as servers,
    ):
        tune(job, environments, servers)


def tune(job: Job, environments: Environments | None, servers: RolloutServers | None) -> None:
    # With dropout, the trainer would score the completions with another policy than vLLM samples from
    setup = prepare(job, GRPOSpec, dropout=False)
    spec, model, limits, encoder = setup.spec, setup.model, setup.limits, setup.encoder
    kind = kind_of(job, *spec.row_kinds())
    labels = [reward.label for reward in spec.rewards]
    if environments and environments.owns_reward:
        labels.append(environments.name)
    if not labels:
        raise StageError("there is no reward: set `rewards`, or give the environment a method get_reward()")
    if taken := reserved(labels, METRICS):
        raise StageError(f"reward {taken}: training has a metric of this name; set another `name`")
    calls = ToolCalls(setup.tokenizer, encoder, environments.schemas) if environments else None
    prompts = spec.prompts()

    def encode(row: Row) -> Prompt:
        row = spec.prompted(row, kind)
        return Prompt(row, encoder.prompt(with_tools(row, environments) if environments else row))

    chosen = setup.choose(kind, prompts, encode=encode)
    setup.note(f"{len(chosen.rows)} prompts", prompts, 1, len(chosen.rows))
    rows, prompt_ids = [prompt.row for prompt in chosen.rows], [prompt.ids for prompt in chosen.rows]
    if process.is_first():
        try_on_gold(spec.rewards, rows, encoder.ended, spec.rewards_tried)
    stops = ends(model, encoder)
    alive = partial(job.heart.beat, phase="rollout")
    settings: dict[str, Any] = {"seed": spec.seed, "alive": alive, "check_every": spec.check_weights_every}
    if spec.rollout_servers:
        settings |= {"servers": servers, "workers": spec.rollout_servers.tensor_parallel}
    generate_live(ServedGeneration if spec.rollout_servers else colocated(), **settings)
    with Scorer(spec.rewards) if process.is_first() else nullcontext() as scorer:
        if scorer:
            refuse_reserved(rows)
            scorer.refuse_partial(rows)
        trainer = TokenTrainer(
            prompt_ids,
            spec.drift.max if spec.drift else None,
            **setup.model_arguments(),
            reward_funcs=of_all_ranks(
                reward_function(scorer, rows, spec.generations, environments, encoder, prompt_ids), job.heart
            ),
            rollout_func=rollouts(about(rows, environments, calls, spec, limits)) if environments and calls else None,
            args=GRPOConfig(
                **setup.arguments(),
                num_generations=spec.generations,
                max_completion_length=limits.new,
                temperature=spec.temperature,
                generation_kwargs={"stop_token_ids": [*stops, calls.end] if calls else stops},
                beta=spec.beta,
                use_vllm=True,
                vllm_mode="colocate",
                vllm_max_model_length=limits.total,
                vllm_gpu_memory_utilization=(spec.rollout_servers or spec).gpu_memory_share,
                loss_type="dr_grpo",
                scale_rewards="batch",
                lr_scheduler_type="constant_with_warmup",
            ),
            train_dataset=Dataset.from_dict({"prompt": list(map(str, islice(cycle(range(len(rows))), prompts)))}),
        )
        share_prompts(base_of(trainer.model), trainer.ref_model)
        setup.fit(trainer, METRICS, stateful=scorer, initial=chosen.counts())
    for text, learned_nothing in notices(json_lines(job.metrics), spec, limits):
        job.notice(text, invalidates=learned_nothing)
    setup.finish(trainer)


def reward_function(
    scorer: Scorer | None,
    rows: Sequence[Row],
    generations: int,
    environments: Environments | None = None,
    encoder: RowEncoder | None = None,
    prompt_ids: Sequence[list[int]] = (),
) -> Callable[..., list[float | None]]:
    """Return a reward function with TRL's signature, whose value is the weighted sum of the rewards. Each reward is
    logged as a metric. The function cannot be called without a scorer, which only rank 0 has. `encoder` decodes
    completions so that their thoughts can be recognized, as in an evaluation."""
    begun = [Thinking().opened(encoder.ending(ids)) for ids in prompt_ids] if encoder else []

    def reward(
        prompts: list[str],
        completions: list[str],
        completion_ids: list[list[int]],
        trainer_state: Any,
        log_metric: Callable[[str, float], None],
        conversation: Sequence[Conversation] = (),
        **_: Any,
    ) -> list[float | None]:
        assert scorer is not None
        prompt_rows = [rows[int(index)] for index in prompts]
        state = {name: float(getattr(trainer_state, name) or 0) for name in ("global_step", "max_steps", "epoch")}
        if environments:
            scores = score_conversations(scorer, conversation, environments, state)
        else:
            texts = list(map(encoder.decoded, completion_ids)) if encoder else completions
            opened = [begun[int(index)] for index in prompts] if begun else []
            scores = score(scorer, prompt_rows, texts, completion_ids, state, opened)
        if all(total is None for total in scores.total):
            raise StageError(
                f"step {trainer_state.global_step + 1}: no reward applies to any of {len(completions)} completions "
                "(all returned None); add a reward that applies to these rows"
            )
        if taken := reserved(scores.metrics, METRICS | {label: label for label in scores.rewards}):
            raise StageError(f"log_metric({taken}): training or a reward has a metric of this name; use another")
        means = {name: known_mean(values) for name, values in scores.rewards.items()}
        means |= {EQUAL: equal_groups(scores.total, generations), WITHOUT: fmean(one is None for one in scores.total)}
        for name, value in (scores.metrics | means).items():
            if value is not None:
                log_metric(LOGGED + name, value)
        return scores.total

    return reward


def equal_groups(rewards: Sequence[float | None], generations: int) -> float:
    """Return the share of groups whose rewards are all equal."""
    groups = [rewards[start : start + generations] for start in range(0, len(rewards), generations)]
    return sum(len(set(group) - {None}) < 2 for group in groups) / len(groups)


def notices(lines: Sequence[Mapping[str, float]], spec: GRPOSpec, limits: LengthLimits) -> Iterator[tuple[str, bool]]:
    """Yield notices about a run that learned from few of its completions, by its metrics, each with true if it learned
    from none."""
    equal, without, cut_off = (
        fmean([line[name] for line in lines if name in line] or [0.0]) for name in (EQUAL, WITHOUT, "cut_off")
    )
    groups = spec.steps * spec.batch_size // spec.generations
    if equal > MOST_EQUAL:
        advice = "use prompts that the model solves sometimes, more generations, or rewards with more values"
        if without >= 0.5:  # at this share, the groups may lack a second reward to compare
            advice = (
                f"{without:.0%} of the completions had no reward (None, or a lost environment); return a number for "
                "them, or remove the rows that no reward applies to"
            )
        different = round((1 - equal) * groups)
        yield (
            f"only {different} of {groups} groups of {spec.generations} completions had different "
            f"rewards, and nothing is learned from the others: {advice}",
            different == 0,
        )
    if cut_off > MOST_CUT_OFF:
        yield f"{cut_off:.0%} of the completions were cut off at {limits.new} tokens; raise max_new_tokens", False
