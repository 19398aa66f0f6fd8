"""GRPO: group-relative policy optimization (Shao et al. 2024, arXiv:2402.03300)."""

from dataclasses import replace
from typing import ClassVar, Self

from pydantic import Field

from baton.infra.process.launch import Launch
from baton.tasks.core.spec import ByBaton, Problem, not_identity
from baton.tasks.environments.spec import ToolUse
from baton.tasks.models.rates import ANY_SIZE, Rate
from baton.tasks.posttrain.layout import MICRO_BATCH
from baton.tasks.posttrain.rollout_spec import DriftSpec, RolloutServers
from baton.tasks.posttrain.spec import Method, PostTrainSpec, RewardList, StepCost, VLLMEngine
from baton.tasks.rewards.spec import MOST, RewardSpec, rewards_problems, tried_field
from baton.tasks.vllm.memory import vllm_share


class GRPOSpec(ToolUse, PostTrainSpec):
    """Reinforcement learning with TRL and live vLLM rollouts, on rows with a prompt, scored by rewards."""

    method: ClassVar = Method(
        "grpo",
        "baton.tasks.posttrain.methods.grpo.trainer:train",
        version="5",
        helper="baton.tasks.posttrain.methods.grpo.rollout_node",
    )
    most_in_micro_batch: ClassVar[int] = 2 * MICRO_BATCH
    rates: ClassVar = (
        Rate(50e6, 1.5e-4, "workflows/recipes/laptop.yaml, 5.8 M parameters"),
        Rate(30e9, 1e-6, "TRL's default; DeepSeekMath 7B"),
        Rate(ANY_SIZE, 1e-7, "Tulu 3 70B's RLVR"),
    )

    steps: int = Field(40, ge=1, le=1_000_000, description="optimizer steps, each on new samples")
    batch_size: int = Field(128, ge=2, le=65_536, description="completions per optimizer step")
    generations: int = Field(8, ge=2, le=4_096, description="completions per prompt: the group size")
    beta: float = Field(
        0.0,
        ge=0,
        le=10,
        description="weight of the KL to the initial model; 0: no KL term, and no reference model",
    )
    temperature: float = Field(1.0, gt=0, le=2, description="sampling temperature")
    rewards: list[RewardSpec] = Field(
        [],
        max_length=MOST,
        description="rewards of the completions; their weighted sum, with the environment's own if it has get_reward, "
        "is maximized",
    )
    rewards_tried: ByBaton[bool] = tried_field()
    drift: DriftSpec | None = not_identity(
        None,
        "stop the run, with the worst tokens, if trainer and vLLM drift apart; null: only log it. A stricter limit "
        "does not refuse a finished training",
    )
    check_weights_every: int | None = not_identity(
        50,
        "steps between checks, by digests of all tensors, that vLLM holds exactly the trainer's weights "
        "(not in rollout servers with tensor parallelism); null: no checks",
        ge=1,
        le=1_000_000,
    )
    gpu_memory_share: float = vllm_share(0.3, "while training, without `rollout_servers`")
    rollout_servers: RolloutServers | None = not_identity(
        None, "vLLM engines on separate GPUs or machines; null: one in each of `layout`'s processes"
    )

    def nodes(self) -> int:
        return super().nodes() + (self.rollout_servers.nodes if self.rollout_servers else 0)

    def nodes_fields(self) -> str:
        return super().nodes_fields() + (" and rollout_servers.nodes" if self.rollout_servers else "")

    def shared_folder_for(self) -> str:
        return "rollout_servers.nodes" if self.rollout_servers and self.rollout_servers.nodes else ""

    def devices_fields(self) -> str:
        return super().devices_fields() + (" and of the rollout servers' GPUs" if self.rollout_servers else "")

    def devices(self) -> int:
        servers, processes = self.rollout_servers, self.processes_each()
        if servers is None:
            return processes
        return max(processes, servers.gpus) if servers.nodes else processes + servers.gpus

    def launch(self) -> Launch:
        return replace(super().launch(), helpers=self.rollout_servers.nodes if self.rollout_servers else 0)

    def samples_every_step(self) -> bool:
        return True

    def servers(self) -> RolloutServers | None:
        return self.rollout_servers

    def vllm_engines(self) -> list[VLLMEngine]:
        if servers := self.rollout_servers:
            return [VLLMEngine("rollout_servers", servers.gpu_memory_share, servers.tensor_parallel)]
        return [VLLMEngine("", self.gpu_memory_share)]

    def step_cost(self) -> StepCost:
        """Return the cost of a step, in which the model that sampled runs again, for importance sampling, and with a KL
        term the reference model runs too."""
        return StepCost(
            completions_alone=True,
            reference=self.beta > 0,
            forward_passes=1 + (self.beta > 0),
            vllm_share=None if self.rollout_servers else self.gpu_memory_share,
        )

    def prompts(self) -> int:
        """Return the number of prompts of all steps; a step that reaches the end of the set continues with its first
        prompts."""
        return self.steps * self.batch_size // self.generations

    def epochs(self, rows: int, kind: str) -> float | str:
        return self.prompts() / rows

    def reward_lists(self) -> list[RewardList]:
        return [RewardList("rewards", self.rewards, has_environment=self.environment is not None)]

    def with_rewards_tried(self) -> Self:
        return self.model_copy(update={"rewards_tried": True})

    def problems(self) -> list[Problem]:
        problems = super().problems() + [problem.under("rewards") for problem in rewards_problems(self.rewards)]
        problems += self.tool_problems()
        if self.batch_size % self.generations:
            problems.append(Problem("generations", self.generations, f"a divisor of batch_size {self.batch_size}"))
        if (servers := self.rollout_servers) and servers.count > self.batch_size:
            allowed = f"at most batch_size ({self.batch_size}) engines on all machines"
            problems.append(Problem("rollout_servers.engines", servers.engines, allowed))
        if not (self.rewards or self.environment):
            problems.append(Problem("rewards", [], "at least one, or an environment with get_reward"))
        return problems
