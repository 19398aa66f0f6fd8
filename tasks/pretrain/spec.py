"""What a pretraining run is, and beside it how it is carried out.

The fields that make the result (model, data order, optimizer, schedule) are the run's identity.
`layout`, `checkpoints` and `survival` say how the same result is reached: they may be changed
between two starts, and the run goes on from its newest checkpoint.
"""

from collections.abc import Callable
from typing import Literal

from pydantic import Field

from tasks.pretrain.layout import Layout, nearest
from tasks.pretrain.model_spec import ModelSpec
from tasks.pretrain.optimizer_spec import OptimizerSpec
from tasks.spec import Problem, Spec, StageSpec, not_identity

Reaction = Literal["stop", "skip", "roll_back", "continue"]


class BatchWarmup(Spec):
    """The global batch grows from `start` by `increment` at equal intervals over `steps` steps."""

    start: int = Field(16, ge=1, le=1048576, description="Sequences in the first steps")
    increment: int = Field(16, ge=1, le=1048576, description="Sequences added at a time; divides global_batch - start")
    steps: int = Field(100, ge=1, le=100_000, description="Steps until global_batch is reached")


class AnomalySpec(Spec):
    """What to do when a step goes wrong. The identity of its batch is logged in any case."""

    on_nan: Literal["stop", "skip", "roll_back"] = Field(
        "stop",
        description="Loss or gradient is not finite: stop; skip the batch; or roll_back to the newest checkpoint "
        "and go on behind the batch",
    )
    on_spike: Reaction = Field("continue", description="The loss jumps: the same, or continue as if nothing were")
    spike_deviations: float = Field(
        8.0, gt=0, description="A spike is so many standard deviations above the mean of the last losses"
    )
    window: int = Field(64, ge=8, le=10_000, description="Losses that the mean and the deviation are taken over")
    limit: int = Field(
        10, ge=1, le=10_000, description="Steps skipped or rolled back before the run stops all the same"
    )


class CheckpointPolicy(Spec):
    """When checkpoints are written, and which are kept."""

    every: int = Field(100, ge=1, description="Steps between checkpoints (the last step always has one)")
    keep_last: int = Field(2, ge=1, le=1000, description="Newest checkpoints kept while training")
    keep_every: int | None = Field(None, ge=1, description="Checkpoints kept for good: each multiple of so many steps")
    asynchronous: bool = Field(True, description="Write while training goes on")


class Survival(Spec):
    """What is done when a process dies or hangs."""

    max_restarts: int = Field(3, ge=0, le=1000, description="Starts from the newest checkpoint before giving up")
    hang_timeout_s: float = Field(
        600.0,
        gt=0,
        le=86400,
        description="A process that shows no sign of life for so long is taken for hanging, seconds",
    )


class PretrainSpec(StageSpec):
    """One pretraining run. `tokens()` tokens are seen."""

    engine: Literal["megatron"] = Field("megatron", description="What trains")
    model: ModelSpec = Field(ModelSpec(), description="The model's shape")
    optimizer: OptimizerSpec = Field(OptimizerSpec(), description="Optimizer and schedule")
    sequence_length: int = Field(256, ge=8, le=1048576, description="Tokens in one training sequence")
    global_batch: int = Field(16, ge=1, le=1048576, description="Sequences in one step")
    batch_warmup: BatchWarmup | None = Field(None, description="Smaller batches at first; default: none")
    steps: int = Field(600, ge=1, description="Optimizer steps")
    precision: Literal["bf16", "fp32", "fp8"] = Field(
        "bf16", description="Compute precision; master weights are fp32. fp8 needs Transformer Engine and Hopper"
    )
    seed: int = Field(1234, ge=0, lt=2**31, description="Seed of the weights and of the data order")
    data_weights: list[float] | None = Field(
        None,
        description="Shares of the data sets, each 0 or more: the corpus first, then more_corpora; default: by their "
        "size in tokens. A data set that is too small for its share is read again",
    )
    mask_documents: bool = Field(False, description="Attention stops at document boundaries; positions go on")
    anomalies: AnomalySpec = Field(AnomalySpec(), description="NaN, Inf and loss spikes")
    validate_every: int = Field(100, ge=1, description="Steps between validations (the last step always has one)")
    validation_sequences: int = Field(
        64,
        ge=1,
        description="Held-out sequences in one validation, of the corpus and not of more_corpora: so blends compare",
    )
    layout: Layout = not_identity(Layout(), "How the run is spread over processes")
    checkpoints: CheckpointPolicy = not_identity(CheckpointPolicy(), "When checkpoints are written and kept")
    survival: Survival = not_identity(Survival(), "What is done when a process dies or hangs")

    def problems(self) -> list[Problem]:
        found = [problem.under("model") for problem in self.model.problems()]
        found += [problem.under("optimizer") for problem in self.optimizer.problems()]
        found += self._batch_problems()
        if self.sequence_length > self.model.max_positions:
            allowed = f"at most model.max_positions ({self.model.max_positions})"
            found.append(Problem("sequence_length", self.sequence_length, allowed))
        warm_and_cool = self.optimizer.warmup_steps + self.optimizer.wsd_decay_steps
        if warm_and_cool >= self.steps:
            allowed = f"with optimizer.wsd_decay_steps, less than steps ({self.steps})"
            found.append(Problem("optimizer.warmup_steps", self.optimizer.warmup_steps, allowed))
        if self.data_weights is not None and not (
            all(weight >= 0 for weight in self.data_weights) and sum(self.data_weights) > 0
        ):
            found.append(Problem("data_weights", self.data_weights, "0 or more each, and not all 0"))
        return found + [problem.under("layout") for problem in self.layout_problems(self.model.vocab_size)]

    def _batch_problems(self) -> list[Problem]:
        warmup = self.batch_warmup
        if warmup is None:
            return []
        found = []
        if warmup.start > self.global_batch or (self.global_batch - warmup.start) % warmup.increment:
            allowed = f"must divide global_batch - start ({self.global_batch - warmup.start}) without remainder"
            found.append(Problem("batch_warmup.increment", warmup.increment, allowed))
        if warmup.steps > self.steps:
            found.append(Problem("batch_warmup.steps", warmup.steps, f"at most steps ({self.steps})"))
        return found

    def layout_problems(self, vocab_size: int | None, layout: Layout | None = None) -> list[Problem]:
        """What keeps the layout (or another one) from working, and last the nearest one that works.
        `vocab_size`: rows of the embedding, where they are known."""
        wrong_with = self.layout_check(vocab_size)
        found = wrong_with(layout or self.layout)
        if not found:
            return []
        better = nearest(layout or self.layout, self.model, lambda candidate: not wrong_with(candidate))
        return [found[0].with_way_out(f"{better.words()} works" if better else ""), *found[1:]]

    def layout_check(self, vocab_size: int | None) -> Callable[[Layout], list[Problem]]:
        """What is wrong with a layout for this run, as a function to ask about many."""
        batches = {self.batch_at(step) for step in range(self.batch_warmup.steps if self.batch_warmup else 0)}
        batches.add(self.global_batch)
        return lambda layout: layout.problems_with(self.model, vocab_size, self.sequence_length, batches)

    def batch_at(self, step: int) -> int:
        """The global batch of the step that follows `step` completed ones, in sequences."""
        warmup = self.batch_warmup
        if warmup is None or step >= warmup.steps:
            return self.global_batch
        increments = (self.global_batch - warmup.start) // warmup.increment
        return warmup.start + warmup.increment * (step * increments // warmup.steps)

    def samples_at(self, step: int) -> int:
        """Sequences in the first `step` steps."""
        warm = min(step, self.batch_warmup.steps) if self.batch_warmup else 0
        return sum(self.batch_at(early) for early in range(warm)) + (step - warm) * self.global_batch

    def tokens(self) -> int:
        return self.samples_at(self.steps) * self.sequence_length
