"""Spec of a GRPO run."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from tasks.environments.spec import ToolUse
from tasks.posttrain.layout import MICRO_BATCH
from tasks.posttrain.spec import PostTrainSpec
from tasks.rates import ANY_SIZE, Rate
from tasks.rewards.spec import MOST, RewardSpec, rewards_problems, tried_field
from tasks.serve.spec import vllm_share
from tasks.spec import Problem, Spec


class DriftSpec(Spec):
    """How far vLLM's probabilities of its samples may be from the trainer's."""

    max: float = Field(
        1.1, ge=1, le=100, description="maximum of rollout_mismatch, a step's mean of exp|Δ log p|; 1: no difference"
    )


class RolloutServers(Spec):
    """vLLM engines in processes of their own, which get the trainer's weights after every step."""

    nodes: int = Field(0, ge=0, le=4096, description="Machines of their own, beside those of `layout`; 0: on its first")
    engines: int = Field(
        1, ge=1, le=64, description="vLLM engines on each machine; with `nodes: 0`, on the GPUs that `layout` leaves"
    )
    tensor_parallel: int = Field(1, ge=1, le=64, description="Tensor parallel size: GPUs of each engine")
    gpu_memory_share: float = vllm_share(0.9, "of each engine's own")

    @property
    def machines(self) -> int:
        return max(1, self.nodes)

    @property
    def count(self) -> int:
        """Engines on all machines."""
        return self.machines * self.engines

    @property
    def gpus(self) -> int:
        """GPUs on each machine."""
        return self.engines * self.tensor_parallel


class GRPOSpec(ToolUse, PostTrainSpec):
    """Group-relative policy optimization on rows with a prompt, scored by rewards."""

    most_in_micro_batch: ClassVar[int] = 2 * MICRO_BATCH
    rates: ClassVar = (
        Rate(50e6, 1.5e-4, "workflows/recipes/laptop.yaml, 5.8 M parameters"),
        Rate(30e9, 1e-6, "TRL's default; DeepSeekMath 7B"),
        Rate(ANY_SIZE, 1e-7, "Tulu 3 70B's RLVR"),
    )

    engine: Literal["trl"] = Field("trl", description="training library")
    steps: int = Field(40, ge=1, le=1_000_000, description="optimizer steps, each on new samples")
    batch_size: int = Field(128, ge=2, le=65_536, description="completions per optimizer step")
    generations: int = Field(8, ge=2, le=4_096, description="completions per prompt: the group size")
    beta: float = Field(
        0.0,
        ge=0,
        le=10,
        description="weight of the KL to the initial model; 0: none, and no reference model",
    )
    temperature: float = Field(1.0, gt=0, le=2, description="sampling temperature")
    rewards: list[RewardSpec] = Field(
        [],
        max_length=MOST,
        description="rewards of the completions; their weighted sum, with the environment's own if it has get_reward, "
        "is maximized",
    )
    rewards_tried: bool = tried_field()
    drift: DriftSpec | None = Field(
        None,
        description="stop the run, with the worst tokens, if trainer and vLLM drift apart; null: only log it",
        json_schema_extra={"identity": False},
    )
    check_weights_every: int | None = Field(
        50,
        ge=1,
        le=1_000_000,
        description="steps between checks, by digests of all tensors, that vLLM holds exactly the trainer's weights "
        "(not in rollout servers with tensor parallelism); null: none",
        json_schema_extra={"identity": False},
    )
    gpu_memory_share: float = vllm_share(0.3, "while training, without `rollout_servers`")
    rollout_servers: RolloutServers | None = Field(
        None,
        description="vLLM engines on GPUs or machines of their own; null: one in each of `layout`'s processes",
        json_schema_extra={"identity": False},
    )

    @property
    def machines(self) -> int:
        return self.layout.nodes + (self.rollout_servers.nodes if self.rollout_servers else 0)

    @property
    def devices(self) -> int:
        servers = self.rollout_servers
        if servers is None:
            return self.layout.processes
        if servers.nodes == 0:
            return self.layout.processes + servers.gpus
        return max(self.layout.processes, servers.gpus)

    def processes(self) -> dict[str, Any]:
        return super().processes() | {"helpers": self.rollout_servers.nodes if self.rollout_servers else 0}

    def samples_model(self) -> bool:
        return True

    def problems(self) -> list[Problem]:
        found = super().problems() + [problem.under("rewards") for problem in rewards_problems(self.rewards)]
        found += self.tool_problems()
        if self.batch_size % self.generations:
            found.append(Problem("generations", self.generations, f"a divisor of batch_size {self.batch_size}"))
        if (servers := self.rollout_servers) and servers.count > self.batch_size:
            allowed = f"at most batch_size ({self.batch_size}) engines on all machines"
            found.append(Problem("rollout_servers.engines", servers.engines, allowed))
        if not (self.rewards or self.environment):
            found.append(Problem("rewards", [], "at least one, or an environment with get_reward"))
        return found
