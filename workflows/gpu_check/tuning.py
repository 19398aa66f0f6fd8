"""A few optimizer steps of each post-training engine: SFT; DPO on pairs sampled by vLLM; GRPO with vLLM and the trainer
on one GPU."""

from pathlib import Path
from typing import Any

from baton.tasks.core.job import json_lines
from baton.tasks.posttrain.methods.dpo.spec import DPOSpec, PairsSpec
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.methods.sft import SFTSpec
from baton.tasks.posttrain.spec import PostTrainSpec
from baton.tasks.rewards.spec import RewardSpec
from baton.workflows.gpu_check.step import VLLM, Check, CheckFailed, Step

OPTIMIZER_STEPS = 5
GENERATIONS = 4  # per prompt
DRIFT = 1.1  # between trainer and vLLM, mean of exp |difference of log-probabilities|: NeMo-RL's gate
ALIKE = RewardSpec.model_validate({"similarity": {"unit": "characters"}})  # to the text's own continuation


def sft(check: Check) -> None:
    """Supervised fine-tuning with fp32 weights and bf16 arithmetic."""
    lines = _tune(check, SFTSpec, steps=2 * OPTIMIZER_STEPS, learning_rate=check.size.tuning_rate)
    if not lines[-1]["loss"] < lines[0]["loss"]:
        first, last = lines[0]["loss"], lines[-1]["loss"]
        raise CheckFailed(f"the loss does not fall: {first:.3f} in the first step, {last:.3f} in the last")


def dpo(check: Check) -> None:
    """DPO with a reference model on the model's own completions: vLLM must free its memory first."""
    pairs = PairsSpec(rewards=[ALIKE], prompts=2 * check.size.rows)
    lines = _tune(check, DPOSpec, steps=OPTIMIZER_STEPS, learning_rate=1e-5, pairs=pairs)
    check.figure("margin", lines[-1]["margin"])


def grpo(check: Check) -> None:
    """GRPO with rollouts from a vLLM engine in the same process, whose weights follow the trainer's."""
    more = {"generations": GENERATIONS, "rewards": [ALIKE]}
    lines = _tune(check, GRPOSpec, steps=OPTIMIZER_STEPS, learning_rate=1e-5, **more)
    drift = max(line["rollout_mismatch"] for line in lines)
    check.figure("reward", lines[-1]["reward"])
    check.figure("drift between trainer and vLLM", drift)
    if not drift <= DRIFT:
        raise CheckFailed(f"trainer and vLLM differ: mean exp|Δ log p| is {drift:.3f}; at most {DRIFT} expected")


def _tune(check: Check, spec: type[PostTrainSpec], steps: int, **fields: Any) -> list[dict[str, float]]:
    """Run it, and record its time per step and memory; returns the steps' metrics."""
    size = check.size
    job_spec = spec.model_validate({
        "data": "rows",
        "steps": steps,
        "batch_size": size.rows,
        "layout": {"micro_batch": min(8, size.rows)},
        "warmup_steps": 1,
        "max_prompt_tokens": size.prompt,
        "max_new_tokens": size.new,
        "checkpoint_every": steps,
        **fields,
    })  # fmt: skip
    rows, model = check.artifact("data", "rows"), check.artifact("export")
    job = check.run(
        "baton.tasks.posttrain.engine", "hf_model", job_spec, stage=spec.method.name, model=model, rows=rows
    )
    return _figures(check, job)


def _figures(check: Check, job: Path) -> list[dict[str, float]]:
    _, *lines = json_lines(job / "metrics.jsonl")  # step 0 counts rows
    check.figure("step", (lines[-1]["time"] - lines[0]["time"]) / (len(lines) - 1), "s")
    if "memory_gb" in lines[-1]:
        check.figure("memory", lines[-1]["memory_gb"], "GB")
    check.figure("first loss", lines[0]["loss"])
    check.figure("last loss", lines[-1]["loss"])
    return lines


MEMORY_GB = 20.0  # for 0.5 B parameters: fp32 weights, gradients and AdamW, a reference model, vLLM's share
STEPS = (
    Step("sft", sft, limit_s=180, after=("export",), memory_gb=MEMORY_GB),
    Step("dpo", dpo, limit_s=240, after=("export",), memory_gb=MEMORY_GB, on_cpu_with=VLLM),
    Step("grpo", grpo, limit_s=240, after=("export",), memory_gb=MEMORY_GB, on_cpu_with=VLLM),
)
