"""GRPO with TRL, its rollouts from a live vLLM engine.

    python -m tasks.grpo.grpo JOB_DIR        inputs: model (HFModel), rows (Rows)

Each step: vLLM gets the newest weights and answers some rows' prompts several times; the rewards score what it says,
in a process of their own; TRL makes the update. On-policy: one update per rollout.
"""

import tasks.posttrain.one_gpu  # noqa: F401 - before torch looks for GPUs

# isort: split
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch
import trl.trainer.grpo_trainer
from datasets import Dataset
from torch.nn.functional import pad
from trl import GRPOConfig, GRPOTrainer

from tasks.grpo.rollouts import LiveRollouts
from tasks.grpo.spec import GRPOSpec
from tasks.job import Job, StageError, main
from tasks.posttrain.encode import Encoder, prompted
from tasks.posttrain.rows import choose, kind_of, say_repeats
from tasks.posttrain.score import mean, score, try_on_gold
from tasks.posttrain.trainer import LOGGED, arguments, ends, finish, fit, limits_of, load_model
from tasks.rewards.scorer import Scorer
from tasks.rows.stored import Row

ROWS = 32  # of like lengths that are computed together
METRICS = {
    "reward": "reward",
    "reward_std": "reward_std",
    "kl": "kl",
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "entropy": "entropy",
    "completions/mean_length": "completion_length",
    "completions/clipped_ratio": "cut_off",
    "rollout_mismatch": "rollout_mismatch",
}

Prompt = tuple[Row, list[int]]  # a row, and what the model is asked with


class Trainer(GRPOTrainer):
    """TRL's, on prompts that are token ids already (its column `prompt` is a number in `asked`). It also says how far
    vLLM's probabilities are from its own, and works on less padding."""

    def __init__(self, asked: Sequence[Prompt], **arguments: Any) -> None:
        self.asked = asked
        super().__init__(**arguments)

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.asked[int(number)][1] for number in prompts], None, {}

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mask = output["completion_mask"].bool()
        apart = (output["old_per_token_logps"] - output["sampling_per_token_logps"]).abs()[mask]
        self._metrics["train"]["rollout_mismatch"].append(apart.exp().mean().item())
        return output

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,  # (rows, prompt padded on the left + completion padded on the right)
        attention_mask: torch.Tensor,
        logits_to_keep: int,  # the completion's part
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **other: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """The same numbers from less work: TRL pads every row to the step's longest prompt and longest
        completion, which is half of all positions; here rows of like lengths go together, cut to size."""
        start = input_ids.size(1) - logits_to_keep
        prompts, completions = attention_mask[:, :start].sum(1), attention_mask[:, start:].sum(1)
        order = (prompts * input_ids.size(1) + completions).argsort(stable=True)
        parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        for rows in order.split(ROWS):
            keep = int(completions[rows].max())
            span = slice(start - int(prompts[rows].max()), start + keep)
            logps, entropies, _ = super()._get_per_token_logps_and_entropies(
                model, input_ids[rows, span], attention_mask[rows, span], keep, None, compute_entropy, **other
            )
            cut = (0, logits_to_keep - keep)  # TRL has zeros where there is no token
            parts.append((pad(logps, cut), pad(logps if entropies is None else entropies, cut)))
        back = order.argsort()
        all_logps, all_entropies = (torch.cat(part)[back] for part in zip(*parts, strict=True))
        return all_logps, all_entropies if compute_entropy else None, None


def work(job: Job) -> None:
    spec, source = job.spec(GRPOSpec), job.input("model")
    model, tokenizer = load_model(source)
    limits = limits_of(model, spec)
    kind_of(job, *spec.row_kinds())
    if taken := {each.label for each in spec.rewards} & set(METRICS.values()):
        raise StageError(f"reward {', '.join(sorted(taken))}: a metric of the training has this name; give it another")
    encoder = Encoder(tokenizer)
    prompts = spec.steps * spec.batch_size // spec.generations
    chosen = choose(
        job,
        spec.seed,
        limits,
        encode=lambda row: (asked := prompted(row), encoder.prompt(asked)),
        tokens=lambda prompt: (len(prompt[1]), 0),
        enough=prompts,
    )
    say_repeats("prompts", len(chosen.rows), prompts)
    try_on_gold(spec.rewards, [row for row, _ in chosen.rows], encoder.ended)
    if not torch.cuda.is_available():
        trl.trainer.grpo_trainer.VLLMGeneration = partial(LiveRollouts, seed=spec.seed)
    with Scorer(spec.rewards) as scorer:
        trainer = Trainer(
            chosen.rows,
            model=model,
            reward_funcs=reward_function(scorer, [row for row, _ in chosen.rows]),
            args=GRPOConfig(
                **arguments(job, spec),
                num_generations=spec.generations,
                max_completion_length=limits.new,
                temperature=spec.temperature,
                generation_kwargs={"stop_token_ids": ends(model, tokenizer, encoder.chat)},
                beta=spec.beta,
                use_vllm=True,
                vllm_mode="colocate",
                vllm_max_model_length=limits.total,
                vllm_gpu_memory_utilization=spec.gpu_memory_share,
                loss_type="dr_grpo",
                scale_rewards="batch",
                lr_scheduler_type="constant_with_warmup",
            ),
            train_dataset=Dataset.from_dict(
                {"prompt": list(map(str, islice(cycle(range(len(chosen.rows))), prompts)))}
            ),
            processing_class=tokenizer,
        )
        fit(trainer, job, METRICS, memory=scorer, beginning=chosen.counts())
    finish(job, model, source, spec.label, encoder.chat)


def reward_function(scorer: Scorer, rows: Sequence[Row]) -> Callable[..., list[float | None]]:
    """The weighted sum of the rewards, as TRL calls a reward; each of them is a metric of its own."""

    def reward(
        prompts: list[str],
        completions: list[str],
        completion_ids: list[list[int]],
        trainer_state: Any,
        log_metric: Callable[[str, float], None],
        **_: Any,
    ) -> list[float | None]:
        asked = [rows[int(number)] for number in prompts]
        state = {name: float(getattr(trainer_state, name) or 0) for name in ("global_step", "max_steps", "epoch")}
        scores = score(scorer, asked, completions, completion_ids, state)
        if all(worth is None for worth in scores.total):
            raise StageError(
                f"step {trainer_state.global_step + 1}: no reward applies to any of {len(completions)} completions "
                "(each is None); give a reward that applies to these rows"
            )
        if taken := scores.metrics.keys() & set(METRICS.values()):
            raise StageError(
                f"log_metric({', '.join(sorted(taken))}): a metric of the training has this name; give it another"
            )
        means = {name: mean(values) for name, values in scores.rewards.items()}
        for name, value in (scores.metrics | means).items():
            if value is not None:
                log_metric(LOGGED + name, value)
        return scores.total

    return reward


if __name__ == "__main__":
    main(work)
