"""Specs of the rollouts of methods that sample completions in every step."""

from pydantic import Field

from baton.infra.text import gigabytes
from baton.tasks.core.spec import Spec
from baton.tasks.vllm.memory import vllm_share


class DriftSpec(Spec):
    """Limit on the difference between vLLM's probabilities of its samples and the trainer's."""

    max: float = Field(
        1.1, ge=1, le=100, description="maximum of rollout_mismatch, a step's mean of exp|Δ log p|; 1: no difference"
    )


class RolloutServers(Spec):
    """vLLM engines in separate processes, which get the trainer's weights after every step."""

    nodes: int = Field(0, ge=0, le=4096, description="Machines beside those of `layout`; 0: its first machine")
    engines: int = Field(
        1, ge=1, le=64, description="vLLM engines on each machine; with `nodes: 0`, on the GPUs that `layout` leaves"
    )
    tensor_parallel: int = Field(1, ge=1, le=64, description="Tensor parallel size: GPUs of each engine")
    gpu_memory_share: float = vllm_share(0.9, "of each engine's GPUs")

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

    def text(self, parameters: int) -> str:
        """Describe the engines, their places and their memory for a model with `parameters` parameters."""
        machines = f"{self.nodes} separate machine{'s' * (self.nodes > 1)}"
        where = f"on each of {machines}" if self.nodes else "on the first machine"
        weights = gigabytes(2 * parameters / self.tensor_parallel)  # bf16
        return (
            f"{self.engines} vLLM engine{'s' * (self.engines > 1)}, tensor parallel {self.tensor_parallel}, {where}: "
            f"{weights} of weights on each GPU, {self.gpu_memory_share:.0%} with KV cache"
        )
