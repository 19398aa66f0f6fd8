"""Estimate the resources a stage requires: tokens, arithmetic, memory, and hours on an accelerator.

FLOPs are counted as in tasks/pretrain/flops.py. Hours follow from the assumed share of the accelerator's peak (MFU),
which only a run can measure. Sampling reads all weights and the KV cache from the GPU's memory for each token of a
batch: its hours follow from the share of the memory's bandwidth that vLLM reaches.
"""

from dataclasses import dataclass
from typing import Any

from tasks.dpo.spec import DPOSpec
from tasks.grpo.spec import GRPOSpec
from tasks.posttrain.memory import Held
from tasks.posttrain.memory import estimate as estimate_tuning
from tasks.posttrain.spec import LENGTH, PostTrainSpec
from tasks.pretrain.accelerators import Accelerator
from tasks.pretrain.flops import flops_per_token
from tasks.pretrain.memory import GPU, Kernels, Memory, estimate
from tasks.pretrain.model_spec import ModelSpec
from tasks.pretrain.spec import PretrainSpec
from tasks.sft.spec import SFTSpec
from tasks.spec import StageSpec
from workflows.run_context import RunContext, model_of, positions_of

DECODING = 0.5  # assumed share of the memory's bandwidth while vLLM decodes
BF16 = 2  # bytes
MFU = 0.4  # of a well-tuned run on a frontier GPU: Llama 3 reached 38-43 %


@dataclass(frozen=True)
class Need:
    """The resources one stage requires."""

    parameters: int
    active_parameters: int  # per token
    tokens: int
    flops: float
    memory: Memory  # of each process, in bytes
    processes: int  # one on each accelerator; beside them there may be rollout servers
    precision: str
    sampling: bool = False  # it samples, which is not counted: it takes longer than its arithmetic
    sampled: int = 0  # tokens
    read: float = 0.0  # bytes that each accelerator reads from its memory to sample them

    def hours(self, accelerator: Accelerator | None, mfu: float) -> float | None:
        """Hours at that MFU, with sampling. None: the accelerator's peak is not known."""
        peak = accelerator.peak(self.precision) if accelerator else None
        computing = self.flops / (mfu * peak * self.processes) / 3600 if peak else None
        return computing + self.sampling_hours(accelerator) if computing is not None and accelerator else None

    def sampling_hours(self, accelerator: Accelerator) -> float:
        """Hours of decoding at the share DECODING of the memory's bandwidth."""
        return self.read / (DECODING * accelerator.bandwidth * 1e12) / 3600


# TRL's stages: sequences per example, and passes over each. A backward pass counts as two; DPO and GRPO also run the
# reference model, and GRPO samples first (as DPO does on a few prompts, which is not counted).
TUNING: dict[type[PostTrainSpec], tuple[int, int]] = {SFTSpec: (1, 3), DPOSpec: (2, 3 + 1), GRPOSpec: (1, 3 + 1 + 1)}


def held(spec: PostTrainSpec) -> Held:
    """What a stage holds in memory beside the model that it tunes. DPO closes vLLM before it trains."""
    if isinstance(spec, DPOSpec):
        return Held(rows=2, completions_alone=True, reference=True, reference_in_step=True)
    if isinstance(spec, GRPOSpec):
        return Held(
            completions_alone=True,
            reference=spec.beta > 0,
            vllm_share=None if spec.rollout_servers else spec.gpu_memory_share,
        )
    return Held()


def need(
    context: RunContext, spec: StageSpec | None, kernels: Kernels = GPU, capacity: float | None = None
) -> Need | None:
    """Estimate a stage. None: its arithmetic is negligible, or the model is not known before the run. `capacity`: the
    GPU's memory in bytes, of which vLLM takes its share."""
    known = model_of(context)
    if known is None or not isinstance(spec, (PretrainSpec, PostTrainSpec)):
        return None
    model, vocabulary = known
    weights, active = model.parameters(vocabulary), model.active_parameters(vocabulary)
    if isinstance(spec, PretrainSpec):
        flops = flops_per_token(model, vocabulary, spec.sequence_length) * spec.tokens()
        memory = estimate(spec, vocabulary, kernels)
        return Need(weights, active, spec.tokens(), flops, memory, spec.layout.world, spec.precision)
    sequences, passes = TUNING[type(spec)]
    passes -= spec.adapter is not None  # frozen weights have no gradient
    positions, _ = positions_of(context) or (LENGTH, "")
    length = spec.limits(positions).total  # every sequence at its maximum
    tokens = spec.steps * spec.batch_size * sequences * length
    flops = tokens * passes * flops_per_token(model, vocabulary, length) / 3
    memory = estimate_tuning(spec, held(spec), model, vocabulary, positions, kernels, capacity)
    processes, precision = spec.layout.world, spec.precision
    return Need(
        weights, active, tokens, flops, memory, processes, precision, **_sampling(spec, model, weights, positions)
    )


def _sampling(spec: PostTrainSpec, model: ModelSpec, weights: int, positions: int) -> dict[str, Any]:
    """What a stage samples. A process, or a rollout server, decodes its share of a step's completions together, all of
    maximum length; a server's GPUs read as many parts of weights and cache."""
    if not isinstance(spec, GRPOSpec):
        return {"sampling": spec.samples_model()}
    servers = spec.rollout_servers
    engines, parts = (servers.count, servers.tensor_parallel) if servers else (spec.layout.world, 1)
    limits, together = spec.limits(positions), spec.batch_size // engines
    of_a_token = 2 * BF16 * model.layers * model.kv_heads * model.head_dim
    context = limits.prompt + limits.new / 2
    read = (BF16 * weights + together * context * of_a_token) / parts
    return {"sampled": spec.steps * spec.batch_size * limits.new, "read": float(spec.steps * limits.new * read)}
