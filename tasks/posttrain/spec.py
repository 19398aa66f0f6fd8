"""Base of the specs of post-training methods: the fields that all share, and the methods that the plan and the checks
call.

A method is a file in tasks/posttrain/methods/, whose spec overrides what differs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar

from pydantic import Field

from baton.infra.process.launch import Launch
from baton.infra.progress import say
from baton.tasks.core.restarts import Survival
from baton.tasks.core.spec import ByBaton, Problem, StageSpec, not_identity
from baton.tasks.models.rates import LORA, Rate, default_warmup, rate_for, unusual
from baton.tasks.posttrain.adapter_spec import AdapterSpec
from baton.tasks.posttrain.layout import MICRO_BATCH, TuningLayout
from baton.tasks.posttrain.rollout_spec import RolloutServers
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.rows.marks import refusal
from baton.tasks.rows.stored import Row

if TYPE_CHECKING:  # encode imports Transformers, which would slow down --help
    from baton.tasks.posttrain.encode import RowEncoder

PROMPTED = ("prompt", "prompt_completion", "messages")  # kinds of rows with a prompt
# Metrics of every method, by TRL's names
TRAINING = {name: name for name in ("loss", "grad_norm", "learning_rate", "entropy")}
LENGTH, SAMPLED = 2048, 256  # default lengths of a sequence and of a sampled completion, in tokens


@dataclass(frozen=True)
class Method:
    """Names and version of a post-training method."""

    name: str  # the stage's name
    trainer: str  # "module:function", which is called with the job in the engine's process
    version: str  # part of every cache key: raise it when the same spec and inputs would give another result
    helper: str = ""  # module that runs on machines beside the trainer's


@dataclass(frozen=True)
class StepCost:
    """Memory and computation of an optimizer step beyond those of the trained model."""

    sequences: int = 1  # per example of the batch
    completions_alone: bool = False  # only completions have a loss, and so logits
    reference: bool = False  # there is a reference model
    reference_in_step: bool = False  # the reference model runs between the forward and the backward pass
    forward_passes: int = 0  # additional passes over all sequences, before the step's own
    vllm_share: float | None = None  # vLLM's fraction of the GPU while training; None: no engine


@dataclass(frozen=True)
class VLLMEngine:
    """A vLLM engine that a stage opens."""

    field: str  # field of the spec with the engine's settings; "": the spec itself
    memory_share: float  # fraction of each GPU's memory
    gpus: int = 1


@dataclass(frozen=True)
class RewardList:
    """Rewards that a stage scores completions with."""

    field: str
    rewards: Sequence[RewardSpec]
    has_environment: bool = False  # whether the rewards get an environment's columns beside the rows'


class Example(Protocol):
    """An encoded row."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of prompt and completion, or the length of the row, in tokens."""
        ...


@dataclass(frozen=True)
class Prompt:
    """A row whose prompt the model answers."""

    row: Row
    ids: list[int]  # tokens of the prompt
    answer: list[int] = field(default_factory=list)  # tokens of the row's own completion, where it is used

    @property
    def lengths(self) -> tuple[int, int]:
        return len(self.ids), len(self.answer)


@dataclass(frozen=True)
class LengthLimits:
    """Length limits of a row, in tokens."""

    prompt: int
    new: int
    total: int
    shown: str  # the fields that set them, for messages

    def fit(self, *tokens: int) -> bool:
        """Return whether a row fits. `tokens`: the lengths of prompt and completion, or the length of the row."""
        parts_fit = len(tokens) == 1 or (tokens[0] <= self.prompt and tokens[1] <= self.new)
        return parts_fit and sum(tokens) <= self.total


class PostTrainSpec(StageSpec):
    """An optimizer run over a set of rows."""

    nodes_field: ClassVar[str] = "layout.nodes"
    devices_field: ClassVar[str] = "layout.processes"
    spread_by: ClassVar[str] = "processes and sharding: ddp or fsdp2"
    uses_gpus: ClassVar[bool] = True
    estimate: ClassVar[str] = "baton.tasks.posttrain.need:need"
    method: ClassVar[Method]
    most_in_micro_batch: ClassVar[int] = MICRO_BATCH  # maximum of the default micro batch
    splits_messages: ClassVar[bool] = True  # splits rows of kind messages into a prompt and a completion, the last turn
    rates: ClassVar[tuple[Rate, ...]]  # default learning rates without an adapter, by the model's size

    data: str = not_identity("", "set of rows, by its name under the recipe's `data` (required)")
    engine: Literal["trl"] = Field("trl", description="training library")
    label: ByBaton[str] = Field("", description="name of the tuned model; filled in by Baton from the stage's name")
    steps: int = Field(100, ge=1, le=1_000_000, description="optimizer steps")
    batch_size: int = Field(64, ge=1, le=65_536, description="sequences per optimizer step")
    learning_rate: float | None = Field(
        None,
        gt=0,
        le=0.1,
        description="AdamW's peak learning rate; null: chosen by method, adapter and model size "
        "(docs/post-training.md has the table)",
    )
    warmup_steps: int | None = Field(
        None, ge=0, le=100_000, description="steps of linear warmup; null: a tenth of the steps"
    )
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW's decoupled weight decay")
    max_prompt_tokens: int | None = Field(
        None,
        ge=8,
        le=131_072,
        description="rows with a longer prompt are skipped; tokens. The longest sequence is this plus max_new_tokens; "
        f"null: {LENGTH} tokens plus the other limit, or the model's positions",
    )
    max_new_tokens: int | None = Field(
        None,
        ge=4,
        le=131_072,
        description="rows with a longer completion are skipped, and sampling stops here; tokens. null: as with "
        f"max_prompt_tokens, and {SAMPLED} are sampled (or half of the positions)",
    )
    checkpoint_every: int = not_identity(50, "steps between checkpoints", ge=1, le=100_000)
    adapter: AdapterSpec | None = Field(None, description="train an adapter; null: every weight of the model")
    precision: Literal["bf16", "fp32"] = Field(
        "bf16", description="precision of matrix products; trained weights and the optimizer are in fp32 with either"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of the choice of rows, their order, and sampling")

    layout: TuningLayout = not_identity(TuningLayout(), "Processes, sharding and micro batches")
    survival: Survival = not_identity(Survival(), "How dead or hung processes are handled")

    def smoke(self) -> dict[str, Any]:
        return {"steps": min(self.steps, 2), "warmup_steps": self.warmup_steps and min(self.warmup_steps, 1)}

    def micro_batch(self) -> int:
        """Return the number of examples in one forward and backward pass of a process."""
        return self.layout.micro_batch_of(self.batch_size, self.most_in_micro_batch)

    def default_rate(self, parameters: int) -> Rate:
        """Return the default learning rate for a model with `parameters` parameters."""
        rate = rate_for(self.rates, parameters)
        return rate.scaled(LORA, f"{LORA} times as high for an adapter") if self.adapter else rate

    def resolved(self, parameters: int) -> Self:
        """Return a copy in which the fields that depend on the model have values."""
        rate = self.default_rate(parameters).value if self.learning_rate is None else self.learning_rate
        warmup = default_warmup(self.steps) if self.warmup_steps is None else self.warmup_steps
        return self.model_copy(update={"learning_rate": rate, "warmup_steps": warmup})

    def rate_text(self, parameters: int) -> str:
        """Describe the learning rate with its source, and the warm-up."""
        resolved, rate = self.resolved(parameters), self.default_rate(parameters)
        why = f" ({rate.source})" if self.learning_rate is None else ""
        return f"{resolved.learning_rate:g}{why}, after {resolved.warmup_steps} of {self.steps} steps of warm-up"

    def plan_lines(self, parameters: int, active: int) -> dict[str, str]:
        lines, layout, servers = {"rate": self.rate_text(parameters)}, self.layout, self.servers()
        if layout.world > 1:
            lines["layout"] = f"{layout.sharding} over {layout.nodes} x {layout.processes} processes"
        return lines | ({"servers": servers.text(parameters)} if servers else {})

    def rate_warning(self, parameters: int) -> str | None:
        """Return a warning about an explicit learning rate, if it is unusual."""
        return unusual(self.learning_rate, self.default_rate(parameters)) if self.learning_rate else None

    def launch(self) -> Launch:
        """Return the number of the engine's processes, and how they are supervised."""
        return Launch(
            processes=None if self.layout.sharding == "none" else self.layout.processes,
            nodes=self.layout.nodes,
            max_restarts=self.survival.max_restarts,
            hang_timeout_s=self.survival.hang_timeout_s,
        )

    def row_kinds(self) -> tuple[str, ...]:
        """Return the kinds of rows that the stage accepts."""
        return PROMPTED

    def rows_problems(self, kind: str, rows: Sequence[Row]) -> Iterator[Problem]:
        """Yield problems with the first rows of the set that don't depend on the model."""
        yield from ()

    def refused(self, row: Row, kind: str) -> str:
        """Return why a row of this kind cannot be used with any model, or "" if it can. By default, a conversation with
        the label of one to avoid cannot be used."""
        return refusal(row, kind) if kind == "messages" else ""

    def uses_marks(self, kind: str) -> bool:
        """Return whether rows of this kind are rendered by the chat template with marks."""
        return False

    def encode(self, row: Row, kind: str, encoder: "RowEncoder") -> Example:
        """Encode a row for training. Raises StageError."""
        row = self.prompted(row, kind)
        return Prompt(row, encoder.prompt(row))

    def prompted(self, row: Row, kind: str) -> Row:
        """Split a row into a prompt and a completion. Raises RowRefused for a row that cannot be used."""
        from baton.tasks.posttrain.encode import RowRefused, cut, prompted

        if why := self.refused(row, kind):
            raise RowRefused(f"{why}. The row: {cut(row)}")
        return prompted(row)

    def trained_on(self) -> str:
        return self.data

    def epochs(self, rows: int, kind: str) -> float | str:
        return epochs(self.steps, self.batch_size, rows)

    def step_cost(self) -> StepCost:
        return StepCost()

    def vllm_engines(self) -> list[VLLMEngine]:
        """Return the engines that sample completions from the model; empty if the rows' completions are used."""
        return []

    def uses_vllm(self) -> bool:
        return bool(self.vllm_engines())

    def samples_every_step(self) -> bool:
        """Return whether each optimizer step samples its batch of completions from the model."""
        return False

    def servers(self) -> RolloutServers | None:
        """Return the vLLM engines on separate GPUs or machines, if any."""
        return None

    def reward_lists(self) -> list[RewardList]:
        return []

    def with_rewards_tried(self) -> Self:
        """Return a copy that records that its rewards were tried on the rows' own completions before the stage."""
        return self

    def sequence_lengths(self) -> dict[str, int]:
        given = {"max_prompt_tokens": self.max_prompt_tokens, "max_new_tokens": self.max_new_tokens}
        lengths = {name: value for name, value in given.items() if value is not None}
        return {next(iter(lengths)): sum(lengths.values())} if lengths else {}

    def limits(self, positions: int) -> LengthLimits:
        """Return the length limits for a model with `positions` positions; they may exceed the positions."""
        prompt, new = self.max_prompt_tokens, self.max_new_tokens
        if new is None and self.uses_vllm():
            new = min(SAMPLED, positions // 2)
        total = min(positions, LENGTH + (prompt or new or 0)) if prompt is None or new is None else prompt + new
        fields = [
            f"{name} {value}" for name, value in (("max_prompt_tokens", prompt), ("max_new_tokens", new)) if value
        ]
        return LengthLimits(
            prompt=total - (new or 0) if prompt is None else prompt,
            new=total - (prompt or 0) if new is None else new,
            total=total,
            shown=" and ".join(fields if len(fields) == 2 else [*fields, f"{total} tokens in all"]),
        )

    def problems(self) -> list[Problem]:
        problems = [problem.under("layout") for problem in self.layout.problems_with(self.batch_size)]
        if self.adapter:
            problems += [problem.under("adapter") for problem in self.adapter.problems()]
            if self.adapter.quantize and self.layout.sharding == "fsdp2":
                allowed = "none or ddp with adapter.quantize: weights in 4 bits are not sharded"
                problems.append(Problem("layout.sharding", "fsdp2", allowed))
        if self.warmup_steps is not None and self.warmup_steps >= self.steps:
            problems.append(Problem("warmup_steps", self.warmup_steps, f"fewer than steps ({self.steps})"))
        return problems


S = TypeVar("S", bound=PostTrainSpec)


def epochs(steps: int, batch_size: int, rows: int) -> float:
    """Return how often the steps go over the rows; an epoch's last step uses the remaining rows (batches.py)."""
    full, more = divmod(steps, math.ceil(rows / batch_size))
    return full + more * batch_size / rows


def announced(spec: S, parameters: int) -> S:
    """Return `spec.resolved`, and print a learning rate that the recipe does not set."""
    resolved = spec.resolved(parameters)
    if spec.learning_rate is None:
        say(f"{spec.label or 'post-training'}: learning_rate {spec.rate_text(parameters)}")
    return resolved
