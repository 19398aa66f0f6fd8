"""What a stage takes, known before it starts: tokens, arithmetic, memory, and so the hours on an accelerator.

FLOPs are counted as tasks/pretrain/flops.py does: a backward pass is two forward passes. Hours follow
from them by the share of its peak that an accelerator is kept busy with (MFU), which a run shows and a
plan can only assume.
"""

from dataclasses import dataclass

from tasks.dpo.spec import DPOSpec
from tasks.grpo.spec import GRPOSpec
from tasks.posttrain.spec import PostTrainSpec
from tasks.pretrain.accelerators import Accelerator
from tasks.pretrain.flops import flops_per_token
from tasks.pretrain.memory import GPU, Kernels, Memory, estimate
from tasks.pretrain.model_spec import ModelSpec
from tasks.pretrain.spec import PretrainSpec
from tasks.sft.spec import SFTSpec
from workflows.given import Given, model_of

MFU = 0.4  # what a well set up run reaches on a frontier GPU: Llama 3's had 38-43 %
TRAIN, FORWARD = 3, 1  # passes


@dataclass(frozen=True)
class Need:
    """What one stage takes."""

    parameters: int
    active_parameters: int  # that a token meets
    tokens: int
    flops: float
    memory: Memory  # of each process, in bytes
    processes: int  # one on each accelerator
    precision: str
    sampling: bool = False  # part of it is sampling, which memory bounds: it takes longer than its arithmetic

    def hours(self, accelerator: Accelerator | None, mfu: float) -> float | None:
        """None: the accelerator's peak is not known."""
        peak = accelerator.peak(self.precision) if accelerator else None
        return self.flops / (mfu * peak * self.processes) / 3600 if peak else None


def need(given: Given, stage: str, kernels: Kernels = GPU) -> Need | None:
    """None: its arithmetic is nothing beside the rest of it, or the model is not known before the run."""
    spec, known = given.specs.get(stage), model_of(given)
    if known is None or not isinstance(spec, (PretrainSpec, PostTrainSpec)):
        return None
    model, vocabulary = known
    weights, active = model.parameters(vocabulary), model.active_parameters(vocabulary)
    if isinstance(spec, PretrainSpec):
        flops = flops_per_token(model, vocabulary, spec.sequence_length) * spec.tokens()
        memory = estimate(spec, vocabulary, kernels)
        return Need(weights, active, spec.tokens(), flops, memory, spec.layout.world, spec.precision)
    return _tuning(spec, model, vocabulary)


def _tuning(spec: PostTrainSpec, model: ModelSpec, vocabulary: int) -> Need:
    """TRL's stages, in one process, with all sequences as long as they may be. Their activations are not counted."""
    length = spec.max_prompt_tokens + spec.max_new_tokens
    forward = flops_per_token(model, vocabulary, length) / TRAIN
    tokens = spec.steps * spec.batch_size * length
    if isinstance(spec, SFTSpec):
        passes = TRAIN * tokens
    elif isinstance(spec, DPOSpec):  # two sequences each, through the reference model too; and what was sampled first
        tokens *= 2
        passes = (TRAIN + FORWARD) * tokens + FORWARD * spec.prompts * length
    else:  # the rollouts, and the reference model for the KL
        reference = FORWARD if isinstance(spec, GRPOSpec) and spec.beta else 0
        passes = (TRAIN + FORWARD + reference) * tokens
    weights = model.parameters(vocabulary)
    memory = Memory(4 * weights, 4 * weights, 8 * weights, 0)  # in fp32: tasks/posttrain/trainer.py
    sampling = not isinstance(spec, SFTSpec)
    return Need(weights, model.active_parameters(vocabulary), tokens, passes * forward, memory, 1, "bf16", sampling)
