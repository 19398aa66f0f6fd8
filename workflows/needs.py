"""What a stage takes, known before it starts: tokens, arithmetic, memory, and so the hours on an accelerator.

FLOPs are counted as tasks/pretrain/flops.py does. Hours follow from them by the share of its peak that an
accelerator is kept busy with (MFU), which a run shows and a plan can only assume.
"""

from dataclasses import dataclass

from tasks.dpo.spec import DPOSpec
from tasks.grpo.spec import GRPOSpec
from tasks.posttrain.memory import Held
from tasks.posttrain.memory import estimate as estimate_tuning
from tasks.posttrain.spec import LENGTH, PostTrainSpec
from tasks.pretrain.accelerators import Accelerator
from tasks.pretrain.flops import flops_per_token
from tasks.pretrain.memory import GPU, Kernels, Memory, estimate
from tasks.pretrain.spec import PretrainSpec
from tasks.sft.spec import SFTSpec
from tasks.spec import StageSpec
from workflows.given import Given, model_of, positions_of

MFU = 0.4  # what a well set up run reaches on a frontier GPU: Llama 3's had 38-43 %


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


# TRL's stages: sequences of an example, and passes of each. A backward pass is two; DPO and GRPO go through the
# reference model as well, and GRPO samples first (as DPO does on a few prompts, which is not counted).
TUNING: dict[type[PostTrainSpec], tuple[int, int]] = {SFTSpec: (1, 3), DPOSpec: (2, 3 + 1), GRPOSpec: (1, 3 + 1 + 1)}


def held(spec: PostTrainSpec) -> Held:
    """What a stage holds beside the model that it tunes. DPO's vLLM is closed before its training."""
    if isinstance(spec, DPOSpec):
        return Held(rows=2, completions_alone=True, reference=True, reference_in_step=True)
    if isinstance(spec, GRPOSpec):
        return Held(completions_alone=True, reference=spec.beta > 0, vllm_share=spec.gpu_memory_share)
    return Held()


def need(given: Given, spec: StageSpec | None, kernels: Kernels = GPU, capacity: float | None = None) -> Need | None:
    """None: its arithmetic is nothing beside the rest of it, or the model is not known before the run. `capacity`: of
    the GPU, in bytes, of which vLLM takes its share."""
    known = model_of(given)
    if known is None or not isinstance(spec, (PretrainSpec, PostTrainSpec)):
        return None
    model, vocabulary = known
    weights, active = model.parameters(vocabulary), model.active_parameters(vocabulary)
    if isinstance(spec, PretrainSpec):
        flops = flops_per_token(model, vocabulary, spec.sequence_length) * spec.tokens()
        memory = estimate(spec, vocabulary, kernels)
        return Need(weights, active, spec.tokens(), flops, memory, spec.layout.world, spec.precision)
    sequences, passes = TUNING[type(spec)]
    positions, _ = positions_of(given) or (LENGTH, "")
    length = spec.limits(positions).total  # all sequences as long as they may be
    tokens = spec.steps * spec.batch_size * sequences * length
    flops = tokens * passes * flops_per_token(model, vocabulary, length) / 3
    memory = estimate_tuning(spec, held(spec), model, vocabulary, positions, kernels, capacity)
    return Need(weights, active, tokens, flops, memory, 1, "bf16", sampling=not isinstance(spec, SFTSpec))
