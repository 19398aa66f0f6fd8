"""Base of the specs of post-training methods: what they share, and what the plan and the checks ask of each.

A method is a file in tasks/posttrain/methods/, whose spec overrides what differs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, Self, TypeVar

from pydantic import Field

from infra.process.launch import Launch
from infra.progress import say
from tasks.core.restarts import Survival
from tasks.core.spec import ByBaton, Problem, StageSpec, not_identity
from tasks.models.rates import LORA, Rate, default_warmup, rate_for, unusual
from tasks.posttrain.adapter_spec import AdapterSpec
from tasks.posttrain.layout import MICRO_BATCH, TuningLayout
from tasks.posttrain.rollout_spec import RolloutServers
from tasks.rewards.spec import RewardSpec
from tasks.rows.marks import refusal
from tasks.rows.stored import Row

if TYPE_CHECKING:  # Transformers: not on the path of --help
    from tasks.posttrain.encode import RowEncoder

PROMPTED = ("prompt", "prompt_completion", "messages")  # kinds of rows with a prompt
# metrics of every method, by TRL's names
TRAINING = {name: name for name in ("loss", "grad_norm", "learning_rate", "entropy")}
LENGTH, SAMPLED = 2048, 256  # default tokens of a sequence, and of a sampled completion


@dataclass(frozen=True)
class Method:
    """A post-training method, as its spec names it."""

    name: str  # of its stage
    trainer: str  # "module:function", which is called with the job in the engine's process
    version: str  # of every cache key: raise it when the same spec and inputs would give another result
    helper: str = ""  # module that machines beside the trainer's run


@dataclass(frozen=True)
class StepCost:
    """What an optimizer step holds and computes beside the model that is trained."""

    sequences: int = 1  # per example of the batch
    completions_alone: bool = False  # only completions have a loss, and so logits
    reference: bool = False  # there is a reference model
    reference_in_step: bool = False  # it runs between the forward and the backward pass
    forward_passes: int = 0  # over all sequences, before the step's own
    vllm_share: float | None = None  # vLLM's fraction of the GPU while training; None: no engine


@dataclass(frozen=True)
class VLLMEngine:
    """A vLLM engine that a stage opens."""

    field: str  # of the spec, that has its settings; "": the spec itself
    memory_share: float  # of each GPU
    gpus: int = 1


@dataclass(frozen=True)
class RewardList:
    """Rewards that a stage scores completions with."""

    field: str
    rewards: Sequence[RewardSpec]
    has_environment: bool = False  # which they get beside the rows' columns


class Example(Protocol):
    """An encoded row."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """In tokens: of prompt and completion, or of the whole row."""
        ...


@dataclass(frozen=True)
class Prompt:
    """A row whose prompt the model answers."""

    row: Row
    ids: list[int]  # of the prompt
    answer: list[int] = field(default_factory=list)  # the row's own completion, where it is used

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
        """Whether a row of so many tokens fits: those of prompt and completion, or of the whole row."""
        parts_fit = len(tokens) == 1 or (tokens[0] <= self.prompt and tokens[1] <= self.new)
        return parts_fit and sum(tokens) <= self.total


class PostTrainSpec(StageSpec):
    """An optimizer run over a set of rows."""

    nodes_field: ClassVar[str] = "layout.nodes"
    devices_field: ClassVar[str] = "layout.processes"
    spread_by: ClassVar[str] = "processes and sharding: ddp or fsdp2"
    uses_gpus: ClassVar[bool] = True
    estimate: ClassVar[str] = "tasks.posttrain.need:need"
    method: ClassVar[Method]
    most_in_micro_batch: ClassVar[int] = MICRO_BATCH  # by default
    splits_messages: ClassVar[bool] = True  # rows of kind messages into a prompt and the last turn, its completion
    rates: ClassVar[tuple[Rate, ...]]  # learning rates of every weight, by the model's size

    data: str = not_identity("", "set of rows, by its name under the recipe's `data` (required)")
    engine: Literal["trl"] = Field("trl", description="training library")
    label: ByBaton[str] = Field("", description="name of the tuned model; filled in by Baton from the stage's name")
    steps: int = Field(100, ge=1, le=1_000_000, description="optimizer steps")
    batch_size: int = Field(64, ge=1, le=65_536, description="sequences per optimizer step")
    learning_rate: float | None = Field(
        None,
        gt=0,
        le=0.1,
        description="AdamW's peak learning rate; null: by the method, the adapter and the model's size "
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

    def micro_batch(self) -> int:
        """Examples in one forward and backward pass of a process."""
        return self.layout.micro_batch_of(self.batch_size, self.most_in_micro_batch)

    def default_rate(self, parameters: int) -> Rate:
        """The default learning rate for a model with so many parameters."""
        rate = rate_for(self.rates, parameters)
        return rate.scaled(LORA, f"{LORA} times as high for an adapter") if self.adapter else rate

    def resolved(self, parameters: int) -> Self:
        """A copy in which the fields that depend on the model have values."""
        rate = self.default_rate(parameters).value if self.learning_rate is None else self.learning_rate
        warmup = default_warmup(self.steps) if self.warmup_steps is None else self.warmup_steps
        return self.model_copy(update={"learning_rate": rate, "warmup_steps": warmup})

    def rate_text(self, parameters: int) -> str:
        """The learning rate and the warm-up, and where the former is from."""
        resolved, rate = self.resolved(parameters), self.default_rate(parameters)
        why = f" ({rate.source})" if self.learning_rate is None else ""
        return f"{resolved.learning_rate:g}{why}, after {resolved.warmup_steps} of {self.steps} steps of warm-up"

    def plan_lines(self, parameters: int, active: int) -> dict[str, str]:
        lines, layout, servers = {"rate": self.rate_text(parameters)}, self.layout, self.servers()
        if layout.world > 1:
            lines["layout"] = f"{layout.sharding} over {layout.nodes} x {layout.processes} processes"
        return lines | ({"servers": servers.text(parameters)} if servers else {})

    def rate_warning(self, parameters: int) -> str | None:
        """What is wrong with an explicit learning rate, if anything."""
        return unusual(self.learning_rate, self.default_rate(parameters)) if self.learning_rate else None

    def launch(self) -> Launch:
        """The processes of its engine."""
        return Launch(
            processes=None if self.layout.sharding == "none" else self.layout.processes,
            nodes=self.layout.nodes,
            max_restarts=self.survival.max_restarts,
            hang_timeout_s=self.survival.hang_timeout_s,
        )

    def row_kinds(self) -> tuple[str, ...]:
        """Kinds of rows that the stage accepts."""
        return PROMPTED

    def rows_problems(self, kind: str, rows: Sequence[Row]) -> Iterator[Problem]:
        """Problems with the first rows of its set, whatever the model is."""
        yield from ()

    def refused(self, row: Row, kind: str) -> str:
        """Why a row of this kind cannot be used, whatever the model is; empty if it can. By default a conversation with
        the label of one to avoid cannot."""
        return refusal(row, kind) if kind == "messages" else ""

    def uses_marks(self, kind: str) -> bool:
        """Whether rows of this kind are rendered by the chat template with marks."""
        return False

    def encode(self, row: Row, kind: str, encoder: "RowEncoder") -> Example:
        """A row as it is trained on. Raises StageError."""
        row = self.prompted(row, kind)
        return Prompt(row, encoder.prompt(row))

    def prompted(self, row: Row, kind: str) -> Row:
        """The row as a prompt and a completion. Raises RowRefused for a row that cannot be used."""
        from tasks.posttrain.encode import RowRefused, cut, prompted

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
        """The engines that sample completions from the model; empty: the rows' are used."""
        return []

    def uses_vllm(self) -> bool:
        return bool(self.vllm_engines())

    def samples_every_step(self) -> bool:
        """Whether each optimizer step samples its batch of completions from the model."""
        return False

    def servers(self) -> RolloutServers | None:
        """vLLM engines on separate GPUs or machines."""
        return None

    def reward_lists(self) -> list[RewardList]:
        return []

    def with_rewards_tried(self) -> Self:
        """A copy whose rewards were tried on the rows' own completions before it begins."""
        return self

    def sequence_lengths(self) -> dict[str, int]:
        given = {"max_prompt_tokens": self.max_prompt_tokens, "max_new_tokens": self.max_new_tokens}
        lengths = {name: value for name, value in given.items() if value is not None}
        return {next(iter(lengths)): sum(lengths.values())} if lengths else {}

    def limits(self, positions: int) -> LengthLimits:
        """Length limits for a model with so many positions; they may exceed the positions."""
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
                allowed = "none or ddp with adapter.quantize: weights in 4 bits are not sharded, each process has them"
                problems.append(Problem("layout.sharding", "fsdp2", allowed))
        if self.warmup_steps is not None and self.warmup_steps >= self.steps:
            problems.append(Problem("warmup_steps", self.warmup_steps, f"fewer than steps ({self.steps})"))
        return problems


S = TypeVar("S", bound=PostTrainSpec)


def epochs(steps: int, batch_size: int, rows: int) -> float:
    """How often the steps go over the rows: an epoch's last step takes what is left of them (batches.py)."""
    whole, more = divmod(steps, math.ceil(rows / batch_size))
    return whole + more * batch_size / rows


def announced(spec: S, parameters: int) -> S:
    """`spec.resolved`, and a line in the terminal about a learning rate that the recipe leaves open."""
    resolved = spec.resolved(parameters)
    if spec.learning_rate is None:
        say(f"{spec.label or 'post-training'}: learning_rate {spec.rate_text(parameters)}")
    return resolved
