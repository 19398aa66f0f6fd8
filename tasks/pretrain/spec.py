"""The spec of a pretraining run.

The fields that determine the result (model, data order, optimizer, schedule) are the run's identity. `layout`,
`checkpoints` and `survival` do not affect the result: they may change when a run is restarted, and it continues from
its newest checkpoint.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from baton.infra.text import count
from baton.tasks.core.restarts import Survival
from baton.tasks.core.spec import ByBaton, Problem, Spec, StageSpec, identity_if_set, not_identity
from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.models.rates import Rate, rate_for
from baton.tasks.pretrain.layout import Layout, nearest
from baton.tasks.pretrain.mixture import SourceShare
from baton.tasks.pretrain.optimizer_spec import CONTINUED, RATES, OptimizerSpec

Reaction = Literal["stop", "skip", "roll_back", "continue"]


class BatchWarmup(Spec):
    """Batch size warm-up: the batch grows from `start` by `increment` at equal intervals over `steps` steps."""

    start: int = Field(16, ge=1, le=1048576, description="Sequences in the first steps")
    increment: int = Field(16, ge=1, le=1048576, description="Sequences added each time; divides global_batch - start")
    steps: int = Field(100, ge=1, le=100_000, description="Steps until global_batch is reached")


class AnomalySpec(Spec):
    """The handling of anomalous steps. The origin of their batches is always logged."""

    on_nan: Literal["stop", "skip", "roll_back"] = Field(
        "stop",
        description="If loss or gradient is not finite: stop, skip the batch, or roll_back to the newest checkpoint "
        "and continue after the batch",
    )
    on_spike: Reaction = Field("continue", description="If the loss spikes: the same, or continue with the step")
    spike_deviations: float = Field(
        8.0, gt=0, description="A spike exceeds the mean of the last losses by this many standard deviations"
    )
    window: int = Field(64, ge=8, le=10_000, description="Number of losses for the mean and standard deviation")
    limit: int = Field(10, ge=1, le=10_000, description="Steps that may be skipped or rolled back before the run stops")

    def may_roll_back(self) -> bool:
        return "roll_back" in (self.on_nan, self.on_spike)


class CheckpointPolicy(Spec):
    """The policy for writing and keeping checkpoints."""

    every: int = Field(
        100,
        ge=1,
        description="Steps between checkpoints (the last step always has one). In the cache key only if anomalies roll "
        "back to them",
    )
    keep_last: int = not_identity(2, "Newest checkpoints kept while training", ge=1, le=1000)
    keep_every: int | None = not_identity(None, "Also keep checkpoints at multiples of this many steps", ge=1)
    asynchronous: bool = not_identity(True, "Write while training continues")


class PretrainSpec(StageSpec):
    """A pretraining run on `tokens()` tokens."""

    nodes_field: ClassVar[str] = "layout.nodes"
    devices_field: ClassVar[str] = "layout.processes"
    exact_devices: ClassVar[bool] = True
    spread_by: ClassVar[str] = "processes"
    uses_gpus: ClassVar[bool] = True
    estimate: ClassVar[str] = "baton.tasks.pretrain.need:need"

    engine: Literal["megatron"] = Field("megatron", description="Training engine")
    model: ModelSpec = Field(ModelSpec(), description="Model architecture")
    optimizer: OptimizerSpec = Field(OptimizerSpec(), description="Optimizer and schedule")
    sequence_length: int = Field(256, ge=8, le=1048576, description="Tokens in one training sequence")
    global_batch: int = Field(16, ge=1, le=1048576, description="Sequences in one step")
    batch_warmup: BatchWarmup | None = Field(None, description="Smaller batches at the start; default: none")
    steps: int = Field(600, ge=1, description="Optimizer steps")
    precision: Literal["bf16", "fp32", "fp8"] = Field(
        "bf16", description="Compute precision; master weights are fp32. fp8 needs Transformer Engine and Hopper"
    )
    seed: int = Field(1234, ge=0, lt=2**31, description="Seed of the weights and of the data order")
    data_weights: list[float] | None = Field(
        None,
        description="Weights of the data sets, 0 or more each: the corpus first, then more_corpora; default: their "
        "size in tokens. A data set that is too small for its weight is repeated",
    )
    mixture: ByBaton[dict[str, SourceShare]] = identity_if_set(
        {}, "Shares of the corpus's named sources; filled in by Baton from corpus.sources"
    )
    source_weights: ByBaton[list[dict[str, float]]] = identity_if_set(
        [],
        "Weights of the named sources within each data set, in place of mixture; filled in by Baton in "
        "continuous training",
    )
    mask_documents: bool = Field(False, description="Mask attention at document boundaries; positions are not reset")
    anomalies: AnomalySpec = Field(AnomalySpec(), description="NaN, Inf and loss spikes")
    validate_every: int = Field(100, ge=1, description="Steps between validations (the last step always has one)")
    validation_sequences: int = Field(
        64,
        ge=1,
        description="Held-out sequences per validation, of the corpus only, so that different blends are comparable; "
        "at most as many as it has",
    )
    layout: Layout = not_identity(Layout(), "Parallel layout")
    checkpoints: CheckpointPolicy = not_identity(CheckpointPolicy(), "When checkpoints are written and kept")
    survival: Survival = not_identity(Survival(), "How dead or hung processes are handled")

    def _not_identity(self) -> set[str]:
        """Include the checkpoints in the identity if a run may go back to one of them, and then train on other
        batches."""
        return super()._not_identity() - ({"checkpoints"} if self.anomalies.may_roll_back() else set())

    def default_rate(self, vocab_size: int, continued: bool) -> Rate:
        """Return the default learning rate for the model, from random weights or, if `continued`, from an existing
        model's."""
        rate = rate_for(RATES, self.model.parameters(vocab_size))
        return rate.scaled(CONTINUED, "a tenth of it, from an existing model's weights") if continued else rate

    def resolved(self, vocab_size: int, continued: bool) -> Self:
        """Return a copy in which the optimizer's fields that depend on the model have values."""
        optimizer = self.optimizer.resolved(self.default_rate(vocab_size, continued), self.steps)
        return self.model_copy(update={"optimizer": optimizer})

    def smoke(self) -> dict[str, Any]:
        # the full batch needs the most memory
        return {
            "steps": min(self.steps, 3),
            "batch_warmup": None,
            "validation_sequences": min(self.validation_sequences, 8),
        }

    def device(self) -> str | None:
        return self.layout.device

    def plan_lines(self, parameters: int, active: int) -> dict[str, str]:
        each = f"{self.tokens() / active:.3g} per{' active' * (active < parameters)} parameter"
        batch = count(self.global_batch * self.sequence_length)
        layout = self.layout
        return {
            "tokens": f"{count(self.tokens())}, {each}; {self.steps:,} steps of {batch}",
            "layout": f"{layout.name()}: {layout.nodes} x {layout.processes} processes",
        }

    def problems(self) -> list[Problem]:
        problems = [problem.under("model") for problem in self.model.problems()]
        problems += [problem.under("optimizer") for problem in self.optimizer.problems()]
        problems += self._batch_problems()
        if self.sequence_length > self.model.max_positions:
            allowed = f"at most model.max_positions ({self.model.max_positions})"
            problems.append(Problem("sequence_length", self.sequence_length, allowed))
        warm_and_cool = (self.optimizer.warmup_steps or 0) + self.optimizer.wsd_decay_steps
        if warm_and_cool >= self.steps:
            allowed = f"plus optimizer.wsd_decay_steps, less than steps ({self.steps})"
            problems.append(Problem("optimizer.warmup_steps", self.optimizer.warmup_steps, allowed))
        if self.data_weights is not None and not (
            all(weight >= 0 for weight in self.data_weights) and sum(self.data_weights) > 0
        ):
            problems.append(Problem("data_weights", self.data_weights, "0 or more each, and not all 0"))
        return problems + [problem.under("layout") for problem in self.layout_problems(self.model.vocab_size)]

    def _batch_problems(self) -> list[Problem]:
        warmup = self.batch_warmup
        if warmup is None:
            return []
        problems = []
        if warmup.start > self.global_batch or (self.global_batch - warmup.start) % warmup.increment:
            allowed = f"must divide global_batch - start ({self.global_batch - warmup.start}) without remainder"
            problems.append(Problem("batch_warmup.increment", warmup.increment, allowed))
        if warmup.steps > self.steps:
            problems.append(Problem("batch_warmup.steps", warmup.steps, f"at most steps ({self.steps})"))
        return problems

    def layout_problems(self, vocab_size: int | None, layout: Layout | None = None) -> list[Problem]:
        """Return the problems of the run's layout or of `layout`, with the nearest layout that works as advice.
        `vocab_size`: rows of the embedding, if known."""
        wrong_with = self.layout_check(vocab_size)
        problems = wrong_with(layout or self.layout)
        if not problems:
            return []
        better = nearest(layout or self.layout, self.model, lambda candidate: not wrong_with(candidate))
        if better:
            problems[0] = replace(problems[0], allowed=f"{problems[0].allowed}; {better.as_yaml()} works")
        return problems

    def layout_check(self, vocab_size: int | None) -> Callable[[Layout], list[Problem]]:
        """Return a function that returns the problems of a layout for this run."""
        batches = {self.batch_at(step) for step in range(self.batch_warmup.steps if self.batch_warmup else 0)}
        batches.add(self.global_batch)
        return lambda layout: layout.problems_with(self.model, vocab_size, self.sequence_length, batches)

    def batch_at(self, step: int) -> int:
        """Return the global batch of the step after `step` completed ones, in sequences."""
        warmup = self.batch_warmup
        if warmup is None or step >= warmup.steps:
            return self.global_batch
        increments = (self.global_batch - warmup.start) // warmup.increment
        return warmup.start + warmup.increment * (step * increments // warmup.steps)

    def samples_at(self, step: int) -> int:
        """Return the number of sequences in the first `step` steps."""
        warm = min(step, self.batch_warmup.steps) if self.batch_warmup else 0
        return sum(self.batch_at(early) for early in range(warm)) + (step - warm) * self.global_batch

    def tokens(self) -> int:
        return self.samples_at(self.steps) * self.sequence_length
