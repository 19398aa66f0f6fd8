"""Estimates of the needs of a stage: tokens, arithmetic, memory, and hours on an accelerator.

A spec names the function that estimates its stage (`StageSpec.estimate`). FLOPs are counted as in
tasks/hardware/flops.py. The time of a stage is the sum of its `Work`: arithmetic at an assumed share of the
accelerator's peak, which only a run can measure; sampling, which reads all weights and the KV cache from the GPU's
memory for each token of a batch, at the share of the memory's bandwidth that vLLM reaches; and times that do not depend
on the accelerator. Checkpoints, uploads and work repeated after a failure are not counted.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pkgutil import resolve_name

from baton.tasks.core.spec import StageSpec
from baton.tasks.hardware.accelerators import Accelerator
from baton.tasks.hardware.flops import attention_flops, flops_per_token
from baton.tasks.hardware.memory import GPU, Kernels, Memory
from baton.tasks.models.model_spec import ModelSpec

BF16 = 2  # bytes
BYTES_PER_TOKEN = 4.0  # for English with a vocabulary of 32,000 to 128,000

# Assumed shares of the accelerator's peak. Dense models: Llama 3 405B reached 38-43 % (Llama team 2024, table 4).
# Mixtures: OLMoE's 23,600 tokens/s on an H100 (Muennighoff et al. 2024) are 19 %; others reach 15 to 25 %
MFU, MIXTURE_MFU = 0.4, 0.2
# Of the product of two large matrices, measured: laptop.yaml's 5.8 M parameters reached 49 % on 2 cores with AVX-512's
# instructions for bf16, and 66 % on 2 cores without them
CPU_MFU = 0.55
# Mean share of the maximum length that rows have, for hours on a CPU. laptop.yaml's stages: 35 to 43 %. Hours on a GPU,
# against which limits of cost are checked, are those of rows of the maximum length
FILLED = 0.4
DECODING = 0.5  # share of the memory's bandwidth while vLLM decodes
# Until a stage's first step: two ranks start in 20 to 45 s on a CPU, importing vLLM takes 13 to 50 s, and on a GPU it
# compiles and captures CUDA graphs for about a minute. Weights are read at an NVMe disk's 1 GB/s
START_S = {True: 60.0, False: 15.0}  # with a GPU, without
VLLM_S = {True: 60.0, False: 15.0}
LOADING = 1e9  # bytes/s
PLACED_S = 180.0  # until SkyPilot's machine is up: its first launch took 115 s where nothing had to be provisioned


@dataclass(frozen=True)
class Work:
    """A part of the work of a stage."""

    name: str
    flops: float = 0.0  # in all processes, at the assumed share of the peak
    read: float = 0.0  # bytes that each accelerator reads from its memory to sample
    seconds: float = 0.0  # on any accelerator

    def hours(self, accelerator: Accelerator, flops_per_s: float) -> float:
        """Return the hours of this work on an accelerator. `flops_per_s` is that of all processes."""
        sampling = self.read / (DECODING * accelerator.bandwidth * 1e12)
        return (self.flops / flops_per_s + sampling + self.seconds) / 3600


@dataclass(frozen=True)
class Need:
    """The resources one stage requires."""

    parameters: int
    active_parameters: int  # per token
    tokens: int
    flops: float  # the model's, without recomputation and other work
    memory: Memory  # for each process, in bytes, without the memory that only vLLM needs
    processes: int  # one on each accelerator; rollout servers are not included
    precision: str
    work: tuple[Work, ...]
    sampled: int = 0  # tokens
    not_counted: str = ""  # work that the hours do not include
    gpu: bool = True

    @property
    def mixture(self) -> bool:
        return self.active_parameters < self.parameters

    def mfu(self, given: float | None) -> float:
        """Return the share of the peak: the given one, or the assumption for this kind of model."""
        return given or (MFU if self.gpu else CPU_MFU) * (MIXTURE_MFU / MFU if self.mixture else 1)

    def parts(self, accelerator: Accelerator | None, mfu: float | None) -> dict[str, float]:
        """Return the hours of each part; empty if the accelerator's peak is not known."""
        peak = accelerator.peak(self.precision) if accelerator else None
        if not accelerator or not peak:
            return {}
        flops_per_s = self.mfu(mfu) * peak * self.processes
        return {work.name: work.hours(accelerator, flops_per_s) for work in self.work}

    def hours(self, accelerator: Accelerator | None, mfu: float | None) -> float | None:
        """Return the hours on an accelerator; None if its peak is not known."""
        parts = self.parts(accelerator, mfu)
        return sum(parts.values()) if parts else None


@dataclass(frozen=True)
class Conditions:
    """The conditions of an estimate besides the spec: the model, the number of corpora, and the device."""

    model: ModelSpec
    vocabulary: int
    positions: int
    corpora: int = 0
    kernels: Kernels = GPU
    capacity: float | None = None  # the GPU's memory in bytes, of which vLLM uses its share

    @property
    def gpu(self) -> bool:
        return self.kernels == GPU

    @property
    def parameters(self) -> int:
        return self.model.parameters(self.vocabulary)

    @property
    def filled(self) -> float:
        """The share of their maximum length that rows are assumed to have."""
        return 1.0 if self.gpu else FILLED

    def need(self, spec: StageSpec, work: Iterator[Work], **facts: object) -> Need:
        weights, active = self.parameters, self.model.active_parameters(self.vocabulary)
        placed = [Work("start", seconds=PLACED_S)] if spec.placement else []
        return Need(weights, active, work=_merged([*work, *placed]), gpu=self.gpu, **facts)  # type: ignore[arg-type]

    def forward(self, tokens: float, length: int) -> float:
        """Return the FLOPs of forward passes over sequences of that length."""
        return tokens * flops_per_token(self.model, self.vocabulary, length) / 3

    def recomputation(self, tokens: float, length: int, recompute: str) -> float:
        """Return the FLOPs that the backward pass repeats: none, those of the attention, or those of all layers."""
        if recompute == "full":
            return self.forward(tokens, length) - 2 * tokens * self.model.hidden * self.vocabulary
        return tokens * attention_flops(self.model, length) if recompute == "selective" else 0.0

    def sampling(self, sequences: float, new: int, context: float, together: int, parts: int = 1) -> float:
        """Return the bytes that a GPU reads to sample `new` tokens for each sequence, `together` sequences at a time.
        `context` is their mean length. Weights and cache are divided into `parts`."""
        of_a_token = 2 * BF16 * self.model.layers * self.model.kv_heads * self.model.head_dim
        each = (BF16 * self.parameters + together * context * of_a_token) / parts
        return math.ceil(sequences / together) * new * each

    def start(self, vllm: bool = False) -> Work:
        seconds = START_S[self.gpu] + VLLM_S[self.gpu] * vllm + BF16 * self.parameters / LOADING
        return Work("start", seconds=seconds)


def need_of(spec: StageSpec, on: Conditions) -> Need | None:
    """Estimate a stage. Returns None if its arithmetic is negligible, or its layout cannot run, which the spec
    reports."""
    estimated: Need | None = resolve_name(spec.estimate)(spec, on) if spec.estimate else None
    return estimated


def _merged(work: list[Work]) -> tuple[Work, ...]:
    """Return the sum of the work of each name, without empty work."""
    merged: dict[str, Work] = {}
    for part in work:
        before = merged.get(part.name, Work(part.name))
        merged[part.name] = Work(
            part.name, before.flops + part.flops, before.read + part.read, before.seconds + part.seconds
        )
    return tuple(part for part in merged.values() if part.flops or part.read or part.seconds)
