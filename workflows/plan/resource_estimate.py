"""Estimate the resources a stage requires: tokens, arithmetic, memory, and hours on an accelerator.

FLOPs are counted as in tasks/pretrain/flops.py. What they and the rest of a stage take is `Work`: arithmetic at an
assumed share of the accelerator's peak, which only a run can measure; sampling, which reads all weights and the KV
cache from the GPU's memory for each token of a batch, at the share of the memory's bandwidth that vLLM reaches; and
times that do not depend on the accelerator. Not counted: checkpoints, uploads, work repeated after a failure.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tasks.evaluate.spec import EvaluateSpec
from tasks.posttrain.memory import estimate as estimate_tuning
from tasks.posttrain.spec import LENGTH, PostTrainSpec
from tasks.pretrain.accelerators import Accelerator
from tasks.pretrain.flops import attention_flops, flops_per_token
from tasks.pretrain.memory import GPU, Kernels, Memory, estimate
from tasks.pretrain.model_spec import ModelSpec
from tasks.pretrain.spec import PretrainSpec
from tasks.spec import StageSpec
from workflows.run_context import RunContext, model_of, positions_of

BF16 = 2  # bytes
BYTES_PER_TOKEN = 4.0  # of English with a vocabulary of 32,000 to 128,000

# Assumed shares of the accelerator's peak. Dense models: Llama 3 405B reached 38-43 % (Llama team 2024, table 4).
# Mixtures: OLMoE's 23,600 tokens/s on an H100 (Muennighoff et al. 2024) are 19 %; others reach 15 to 25 %
MFU, MIXTURE_MFU = 0.4, 0.2
DECODING = 0.5  # of the memory's bandwidth while vLLM decodes
AT_A_TIME = 256  # sequences of an evaluation: max_num_seqs of open_engine
# NF4 weights are unpacked for each product: QLoRA took 39 % longer than LoRA (S. Raschka, Lightning AI 2023,
# "Finetuning LLMs with LoRA and QLoRA")
UNPACKING = 0.39
# Weights from the trainer to vLLM after each step: PCIe 4.0 x16 carries 25 GB/s, and a network of 100 Gbit/s,
# the least that clouds' machines with 8 GPUs have, 12.5 GB/s
SYNC_HERE, SYNC_NETWORK = 25e9, 12.5e9  # bytes/s
# Until a stage's first step: two ranks start in 20 to 45 s on a CPU, importing vLLM takes 13 to 50 s, and on a GPU it
# compiles and captures CUDA graphs for about a minute. Weights come at an NVMe disk's 1 GB/s
START_S = {True: 60.0, False: 15.0}  # on a GPU, on a CPU
VLLM_S = {True: 60.0, False: 15.0}
LOADING = 1e9  # bytes/s
PLACED_S = 180.0  # until SkyPilot's machine is up: its first launch took 115 s where nothing had to be provisioned


@dataclass(frozen=True)
class Work:
    """A part of what a stage takes its time for."""

    name: str
    flops: float = 0.0  # in all processes, at the assumed share of the peak
    read: float = 0.0  # bytes that each accelerator reads from its memory to sample
    seconds: float = 0.0  # on any accelerator

    def hours(self, accelerator: Accelerator, flops_per_s: float) -> float:
        """`flops_per_s`: of all processes."""
        sampling = self.read / (DECODING * accelerator.bandwidth * 1e12)
        return (self.flops / flops_per_s + sampling + self.seconds) / 3600


@dataclass(frozen=True)
class Need:
    """The resources one stage requires."""

    parameters: int
    active_parameters: int  # per token
    tokens: int
    flops: float  # of the model: without recomputation and other work
    memory: Memory  # of each process, in bytes, without that of vLLM alone
    processes: int  # one on each accelerator; beside them there may be rollout servers
    precision: str
    work: tuple[Work, ...]
    sampled: int = 0  # tokens
    not_counted: str = ""  # what takes longer than the hours say

    @property
    def mixture(self) -> bool:
        return self.active_parameters < self.parameters

    def mfu(self, given: float | None) -> float:
        """The share of the peak: as given, or assumed for the kind of model."""
        return given or (MIXTURE_MFU if self.mixture else MFU)

    def parts(self, accelerator: Accelerator | None, mfu: float | None) -> dict[str, float]:
        """Hours by part. Empty: the accelerator's peak is not known."""
        peak = accelerator.peak(self.precision) if accelerator else None
        if not accelerator or not peak:
            return {}
        flops_per_s = self.mfu(mfu) * peak * self.processes
        return {work.name: work.hours(accelerator, flops_per_s) for work in self.work}

    def hours(self, accelerator: Accelerator | None, mfu: float | None) -> float | None:
        """Hours on that accelerator. None: its peak is not known."""
        parts = self.parts(accelerator, mfu)
        return sum(parts.values()) if parts else None


def need(
    context: RunContext, spec: StageSpec | None, kernels: Kernels = GPU, capacity: float | None = None
) -> Need | None:
    """Estimate a stage. None: its arithmetic is negligible, the model is not known before the run, or the layout cannot
    run, which the spec reports. `capacity`: the GPU's memory in bytes, of which vLLM takes its share."""
    known = model_of(context)
    if known is None:
        return None
    shape = _Shape(*known, gpu=kernels == GPU)
    if isinstance(spec, PretrainSpec):
        if shape.model.problems() or spec.layout_check(shape.vocabulary)(spec.layout):
            return None
        return _pretraining(shape, spec, estimate(spec, shape.vocabulary, kernels))
    positions, _ = positions_of(context) or (LENGTH, "")
    if isinstance(spec, PostTrainSpec):
        if spec.layout.problems_with(spec.batch_size):
            return None
        memory = estimate_tuning(spec, shape.model, shape.vocabulary, positions, kernels, capacity)
        return _tuning(shape, spec, memory, positions)
    return _evaluation(context, shape, spec) if isinstance(spec, EvaluateSpec) else None


@dataclass(frozen=True)
class _Shape:
    """The model, and where it runs."""

    model: ModelSpec
    vocabulary: int
    gpu: bool

    @property
    def parameters(self) -> int:
        return self.model.parameters(self.vocabulary)

    def need(self, spec: StageSpec, work: Iterator[Work], **facts: object) -> Need:
        weights, active = self.parameters, self.model.active_parameters(self.vocabulary)
        placed = [Work("start", seconds=PLACED_S)] if spec.placement else []
        return Need(weights, active, work=_merged([*work, *placed]), **facts)  # type: ignore[arg-type]

    def forward(self, tokens: float, length: int) -> float:
        """FLOPs of forward passes over sequences of that length."""
        return tokens * flops_per_token(self.model, self.vocabulary, length) / 3

    def again(self, tokens: float, length: int, recompute: str) -> float:
        """FLOPs that the backward pass repeats: of nothing, the attention, or all layers."""
        if recompute == "full":
            return self.forward(tokens, length) - 2 * tokens * self.model.hidden * self.vocabulary
        return tokens * attention_flops(self.model, length) if recompute == "selective" else 0.0

    def sampling(self, sequences: float, new: int, context: float, together: int, parts: int = 1) -> float:
        """Bytes that a GPU reads to sample `new` tokens for each sequence, all of that length, `together` at a time;
        weights and cache are in so many `parts`."""
        of_a_token = 2 * BF16 * self.model.layers * self.model.kv_heads * self.model.head_dim
        each = (BF16 * self.parameters + together * context * of_a_token) / parts
        return math.ceil(sequences / together) * new * each

    def start(self, vllm: bool = False) -> Work:
        seconds = START_S[self.gpu] + VLLM_S[self.gpu] * vllm + BF16 * self.parameters / LOADING
        return Work("start", seconds=seconds)


def _merged(work: list[Work]) -> tuple[Work, ...]:
    """The sum of the work of each name, without empty work."""
    merged: dict[str, Work] = {}
    for part in work:
        before = merged.get(part.name, Work(part.name))
        merged[part.name] = Work(
            part.name, before.flops + part.flops, before.read + part.read, before.seconds + part.seconds
        )
    return tuple(part for part in merged.values() if part.flops or part.read or part.seconds)


def _pretraining(shape: _Shape, spec: PretrainSpec, memory: Memory) -> Need:
    length, tokens = spec.sequence_length, spec.tokens()
    flops = 3 * shape.forward(tokens, length)

    def work() -> Iterator[Work]:
        yield Work("training", flops)
        yield Work("recomputation", shape.again(tokens, length, spec.layout.recompute))
        validations = math.ceil(spec.steps / spec.validate_every)
        yield Work("validation", shape.forward(validations * spec.validation_sequences * length, length))
        yield shape.start()

    return shape.need(
        spec, work(), tokens=tokens, flops=flops, memory=memory, processes=spec.layout.world, precision=spec.precision
    )


def _tuning(shape: _Shape, spec: PostTrainSpec, memory: Memory, positions: int) -> Need:
    """TRL's stages; every sequence at its maximum length. A backward pass counts as two, with an adapter as one: frozen
    weights have no gradient. What is sampled once before the first step is not counted."""
    limits, layout, cost = spec.limits(positions), spec.layout, spec.step_cost()
    tokens = spec.steps * spec.batch_size * limits.total * cost.sequences
    one = shape.forward(tokens, limits.total)
    training = one * (2 if spec.adapter else 3)
    samples = spec.samples_every_step()

    def work() -> Iterator[Work]:
        yield Work("training", training)
        yield Work("log-probabilities before the step", cost.forward_passes * one)
        recompute = "full" if layout.recomputes(shape.gpu) else "none"
        yield Work("recomputation", shape.again(tokens, limits.total, recompute))
        if spec.adapter and spec.adapter.quantize:
            yield Work("unpacking 4 bits", UNPACKING * (training + cost.forward_passes * one))
        if samples:
            # a process, or a rollout server, decodes its share of a step's completions together
            servers = spec.servers()
            engines, parts = (servers.count, servers.tensor_parallel) if servers else (layout.world, 1)
            together = max(1, spec.batch_size // engines)
            read = shape.sampling(together, limits.new, limits.prompt + limits.new / 2, together, parts)
            yield Work("rollouts", read=spec.steps * read)
            per_s = SYNC_NETWORK if servers and servers.nodes else SYNC_HERE
            yield Work("weight sync", seconds=spec.steps * BF16 * shape.parameters / per_s)
        yield shape.start(vllm=spec.samples_model())

    return shape.need(
        spec,
        work(),
        tokens=tokens,
        flops=training + cost.forward_passes * one,
        memory=memory,
        processes=layout.world,
        precision=spec.precision,
        sampled=spec.steps * spec.batch_size * limits.new if samples else 0,
        not_counted="" if samples or not spec.samples_model() else "sampling before the first step",
    )


def _evaluation(context: RunContext, shape: _Shape, spec: EvaluateSpec) -> Need:
    """One GPU; every completion at its maximum length. Prompts are not counted."""
    corpora = 1 + len(context.specs.get("more_corpora", ())) if "corpus" in context else 0
    scored = corpora * spec.bits_per_byte.held_out_bytes / BYTES_PER_TOKEN if spec.bits_per_byte else 0.0
    sampling = [one for one in spec.evaluators().values() if one.data is not None]
    harness = [name for name, one in spec.evaluators().items() if one.lm_eval]

    def work() -> Iterator[Work]:
        yield Work("bits per byte", shape.forward(scored, LENGTH))
        for one in sampling:
            completions = one.prompts * one.samples
            at_once = min(completions, AT_A_TIME)
            yield Work("completions", read=shape.sampling(completions, one.max_new_tokens, LENGTH / 2, at_once))
        yield shape.start(vllm=True)

    return shape.need(
        spec,
        work(),
        tokens=int(scored),
        flops=shape.forward(scored, LENGTH),
        memory=Memory(0, 0, 0, 0),
        processes=1,
        precision="bf16",
        sampled=sum(one.prompts * one.samples * one.max_new_tokens for one in sampling),
        not_counted=f"lm-eval's tasks ({', '.join(harness)})" if harness else "",
    )
