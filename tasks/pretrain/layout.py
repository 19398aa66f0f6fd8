"""A training run's parallel layout: Megatron's parallel sizes, their constraints, and a search for the nearest valid
layout. The layout is not part of a result's identity: a run may be resumed with another layout.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Literal

from pydantic import Field

from baton.infra.text import in_yaml
from baton.tasks.core.spec import Problem, Spec
from baton.tasks.models.model_spec import ModelSpec


class Layout(Spec):
    """Megatron's parallel sizes: nodes x processes = tensor x context x pipeline x data; `data` follows from the
    others."""

    nodes: int = Field(1, ge=1, le=4096, description="Machines")
    processes: int = Field(1, ge=1, le=256, description="Processes on each machine: one per GPU")
    tensor: int = Field(1, ge=1, le=256, description="Tensor parallel size: parts that each matrix is split into")
    pipeline: int = Field(1, ge=1, le=256, description="Pipeline parallel size: stages that the layers are split into")
    virtual_pipeline: int = Field(1, ge=1, le=64, description="Interleaved parts of each pipeline stage; 1: one part")
    context: int = Field(1, ge=1, le=256, description="Context parallel size: parts that each sequence is split into")
    expert: int = Field(1, ge=1, le=1024, description="Expert parallel size: groups that the experts are split into")
    expert_tensor: int = Field(1, ge=1, le=256, description="Tensor parallel size within an expert")
    sequence_parallel: bool = Field(False, description="Split norms and residuals along the sequence, with tensor > 1")
    distributed_optimizer: bool = Field(False, description="Shard the optimizer state over data parallel ranks")
    micro_batch: int = Field(16, ge=1, le=65536, description="Sequences in one forward pass")
    recompute: Literal["none", "selective", "full"] = Field(
        "none", description="Recomputation in the backward pass: none, of the attention, or of complete layers"
    )
    device: str | None = Field(
        None,
        min_length=1,
        description="Accelerator that the layout is for, such as H100 or A100-80GB; default: this machine's",
    )

    @property
    def world(self) -> int:
        return self.nodes * self.processes

    @property
    def data(self) -> int:
        """Data parallel size."""
        return self.world // (self.tensor * self.pipeline * self.context)

    def name(self) -> str:
        """Return a short, unambiguous name such as TP2-PP2x2-DP2-SP-DO."""
        sizes = {"TP": self.tensor, "CP": self.context, "EP": self.expert, "ETP": self.expert_tensor}
        words = [f"{word}{size}" for word, size in sizes.items() if size > 1]
        if self.pipeline > 1:
            words.append(f"PP{self.pipeline}" + (f"x{self.virtual_pipeline}" if self.virtual_pipeline > 1 else ""))
        words += [f"DP{self.data}"] if self.data > 1 or not words else []
        words += ["SP"] if self.sequence_parallel else []
        words += ["DO"] if self.distributed_optimizer else []
        words += [f"recompute-{self.recompute}"] if self.recompute != "none" else []
        return "-".join(words)

    def problems_with(
        self, model: ModelSpec, vocab_size: int | None, sequence: int, batches: set[int]
    ) -> list[Problem]:
        """Return the reasons why Megatron cannot run this model with this sequence length and these global batch
        sizes."""
        grid = self.tensor * self.pipeline * self.context
        if self.world % grid:
            allowed = f"nodes x processes ({self.world}) must be a multiple of tensor x pipeline x context ({grid})"
            return [Problem("processes", self.processes, allowed)]
        problems = [
            Problem(field, getattr(self, field), f"must divide {what} ({size}) without remainder")
            for field, part, what, size in self._divisions(model, vocab_size, sequence)
            if size % part
        ]
        problems += [
            Problem(field, getattr(self, field), allowed) for field, allowed, wrong in self._rules(model) if wrong
        ]
        return problems + self._batch_problems(batches)

    def _batch_problems(self, batches: set[int]) -> list[Problem]:
        """Return the problem of the first batch that cannot be divided; those of others have the same cause."""
        per_step = self.micro_batch * self.data
        for batch in sorted(batches):
            micro_batches = batch // per_step
            if batch % per_step:
                allowed = f"times the data parallel size ({self.data}), must divide the global batch ({batch})"
                return [Problem("micro_batch", self.micro_batch, allowed)]
            if self.virtual_pipeline > 1 and micro_batches % self.pipeline:
                allowed = f"the number of micro batches ({micro_batches}) must divide by pipeline ({self.pipeline})"
                return [Problem("virtual_pipeline", self.virtual_pipeline, allowed)]
        return []

    def _divisions(
        self, model: ModelSpec, vocab_size: int | None, sequence: int
    ) -> Iterator[tuple[str, int, str, int]]:
        """Yield (field, its size, the quantity that it must divide, the size of the quantity)."""
        yield "tensor", self.tensor, "model.heads", model.heads
        yield "tensor", self.tensor, "model.kv_heads", model.kv_heads
        yield "tensor", self.tensor, "model.vocab_size", vocab_size or 0
        yield (
            "pipeline",
            self.pipeline * self.virtual_pipeline,
            "model.layers by pipeline x virtual_pipeline",
            model.layers,
        )
        if self.context > 1:
            yield "context", 2 * self.context, "sequence_length by 2 x context", sequence
        if self.sequence_parallel:
            yield "tensor", self.tensor * self.context, "sequence_length by tensor x context", sequence
        if model.experts is None:
            yield "tensor", self.tensor, "model.ffn_hidden", model.ffn_hidden
            return
        yield "expert", self.expert, "model.experts.count", model.experts.count
        yield "expert_tensor", self.expert_tensor, "model.experts.ffn_hidden", model.experts.ffn_hidden
        yield "expert_tensor", self.expert_tensor, "tensor", self.tensor  # the parity tests cover no other ratio
        yield "tensor", self.tensor, "model.experts.shared_ffn_hidden", model.experts.shared_ffn_hidden
        shared = self.world // self.pipeline
        yield "expert", self.expert * self.expert_tensor, "tensor x context x data, by expert x expert_tensor", shared

    def _rules(self, model: ModelSpec) -> Iterator[tuple[str, str, bool]]:
        """Yield (field, the allowed values, whether the rule is violated)."""
        experts = model.experts is not None
        yield "expert", "only with model.experts", self.expert > 1 and not experts
        yield "expert_tensor", "only with model.experts", self.expert_tensor > 1 and not experts
        yield "virtual_pipeline", "only with pipeline > 1", self.virtual_pipeline > 1 and self.pipeline == 1
        yield "sequence_parallel", "only with tensor > 1", self.sequence_parallel and self.tensor == 1
        needs = "required with experts and tensor > 1: each rank routes its own part of the sequence"
        # Megatron 0.16 then treats an expert as a dense weight and reduces its gradient only over data parallel ranks,
        # although tensor parallel ranks have copies of it, which would silently diverge
        allowed = f"the same as tensor ({self.tensor}), or expert > 1"
        diverging = experts and self.expert == 1 and self.expert_tensor != self.tensor
        yield "expert_tensor", allowed, diverging
        yield "sequence_parallel", needs, experts and self.tensor > 1 and not self.sequence_parallel

    def as_yaml(self) -> str:
        """Return the fields that differ from the defaults, as in a recipe."""
        return f"layout: {in_yaml(self.model_dump(exclude_defaults=True))}"

    def distance(self, other: "Layout") -> float:
        """Return the distance between two layouts: the number of doublings of sizes, plus 1/2 for each switch that
        differs."""
        doublings: float = sum(abs(math.log2(getattr(self, name) / getattr(other, name))) for name in SIZES)
        switched: int = sum(getattr(self, name) != getattr(other, name) for name in SWITCHES)
        return doublings + switched / 2


SIZES = ("tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor", "micro_batch")
SWITCHES = ("sequence_parallel", "distributed_optimizer", "recompute")


def layouts(like: Layout, model: ModelSpec) -> Iterator[Layout]:
    """Yield every way to split a model over as many processes as `like` has, with its other fields. Not all are
    valid."""
    world = like.world
    expert_sizes = _divisors(model.experts.count) if model.experts else [1]
    sizes = (math.gcd(world, model.heads, model.kv_heads), math.gcd(world, model.layers), world)
    for tensor, pipeline, context in itertools.product(*map(_divisors, sizes)):
        if world % (tensor * pipeline * context):
            continue
        shared = world // pipeline
        for virtual, expert, expert_tensor, sequence in itertools.product(
            (1, 2, 4) if pipeline > 1 else (1,),
            [size for size in expert_sizes if shared % size == 0],
            _divisors(tensor) if model.experts else [1],
            (False, True) if tensor > 1 else (False,),
        ):
            changes = {
                "tensor": tensor,
                "pipeline": pipeline,
                "virtual_pipeline": virtual,
                "context": context,
                "expert": expert,
                "expert_tensor": expert_tensor,
                "sequence_parallel": sequence,
            }
            yield like.model_copy(update=changes)


def nearest(layout: Layout, model: ModelSpec, works: Callable[[Layout], bool]) -> Layout | None:
    """Return the layout with the same number of processes that works and differs least, with smaller micro batches if
    necessary."""
    smaller = _divisors(layout.micro_batch)
    candidates = (
        candidate.model_copy(update={"micro_batch": size}) for candidate in layouts(layout, model) for size in smaller
    )
    return next(filter(works, sorted(candidates, key=layout.distance)), None)


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
