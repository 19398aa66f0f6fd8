"""GRPO with TRL, its rollouts from a live vLLM engine.

    python -m tasks.grpo.grpo JOB_DIR        inputs: model (HFModel), corpus (Corpus)

Each step: vLLM gets the newest weights and answers some training prompts several times; the checks
and the diversity rule make the reward; TRL makes the update. On-policy: one update per rollout.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import trl.trainer.grpo_trainer
from datasets import Dataset
from torch.nn.functional import pad
from trl import GRPOConfig, GRPOTrainer

from tasks.grpo.reward import Reward
from tasks.grpo.rollouts import LiveRollouts
from tasks.grpo.shape import shares
from tasks.grpo.spec import GRPOSpec
from tasks.job import Job, main
from tasks.posttrain.examples import Example, check_positions, examples
from tasks.posttrain.trainer import arguments, finish, fit, load_model
from tasks.statements.check import check
from tasks.statements.summary import summarise

CHECKS = ("parses", "not_trivial", "defined", "uses_context", "all_checks", "distinct")
ROWS = 32  # of like lengths that are computed together
PEOPLE = 4096  # real statements, from which the usual shares of shapes are taken
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
    **{name: name for name in CHECKS},
    "top_shape": "top_shape",
}


class Trainer(GRPOTrainer):
    """TRL's, which also says how far vLLM's probabilities are from its own, and works on less padding."""

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
    check_positions(model, spec)
    rollouts = spec.steps * spec.batch_size // spec.generations
    known = examples(job.input("corpus"), tokenizer, spec, max(rollouts, PEOPLE))
    asked = known[:rollouts]
    usual = shares(one.prompt.reference for one in known[:PEOPLE])
    reward = Reward(spec.diversity_penalty, spec.diversity_window, usual)
    if not torch.cuda.is_available():
        trl.trainer.grpo_trainer.VLLMGeneration = partial(LiveRollouts, seed=spec.seed)
    trainer = Trainer(
        model=model,
        reward_funcs=reward_function(asked, reward),
        args=GRPOConfig(
            **arguments(job, spec),
            num_generations=spec.generations,
            max_completion_length=spec.max_new_tokens,
            temperature=1.0,
            beta=spec.beta,
            use_vllm=True,
            vllm_mode="colocate",
            vllm_max_model_length=spec.max_prompt_tokens + spec.max_new_tokens,
            loss_type="dr_grpo",
            scale_rewards="batch",
            lr_scheduler_type="constant_with_warmup",
        ),
        train_dataset=Dataset.from_list([{"prompt": one.prompt.text, "number": i} for i, one in enumerate(asked)]),
        processing_class=tokenizer,
    )
    fit(trainer, job, METRICS, memory=reward)
    finish(job, model, source, "grpo")


def reward_function(asked: Sequence[Example], reward: Reward) -> Callable[..., list[float]]:
    """The reward as TRL calls it."""

    def statement_reward(
        completions: list[str], number: list[int], log_metric: Callable[[str, float], None], **_: Any
    ) -> list[float]:
        prompts = [asked[i].prompt for i in number]
        verdicts = [check(prompt, text) for prompt, text in zip(prompts, completions, strict=True)]
        summary = summarise(verdicts)
        for name in CHECKS:
            log_metric(name, getattr(summary, name))
        log_metric("top_shape", max(shares(verdict.statement for verdict in verdicts).values()))
        return reward([prompt.id for prompt in prompts], verdicts)

    return statement_reward


if __name__ == "__main__":
    main(work)
