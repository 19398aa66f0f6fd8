"""Spec of a server and of its load test."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from baton.tasks.core.spec import Problem, Spec, StageSpec, not_identity

SIDE_BY_SIDE = 0.45  # fraction of a GPU's memory for each of two engines: of --beside, or during a switch
MOST_CONCURRENT = 1024


class LoadSpec(Spec):
    """A closed-loop load test: each client sends its next request after the response to the last one."""

    concurrency: list[int] = Field(
        [1, 2, 4, 8, 16, 32, 64], min_length=1, max_length=20, description="Concurrent clients of each level; count"
    )
    requests_per_client: int = Field(8, ge=1, le=10_000, description="Requests per client and level; count")
    least_requests: int = Field(32, ge=1, le=1_000_000, description="Minimum number of requests per level; count")
    prompt_tokens: int = Field(128, ge=1, description="Length of a prompt (random tokens); tokens")
    output_tokens: int = Field(64, ge=2, description="Length of a response (end of text is ignored); tokens")
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the prompts")

    def smoke(self) -> dict[str, Any]:
        return {"concurrency": self.concurrency[:2], "requests_per_client": 1, "least_requests": 4}

    def problems(self) -> list[Problem]:
        problems = [
            Problem("concurrency", clients, f"1 to {MOST_CONCURRENT}")
            for clients in self.concurrency
            if not 1 <= clients <= MOST_CONCURRENT
        ]
        if self.concurrency[0] != 1 or self.concurrency != sorted(set(self.concurrency)):
            problems.append(Problem("concurrency", self.concurrency, "increasing numbers that begin with 1"))
        return problems


class ServeSpec(StageSpec):
    """vLLM's OpenAI-compatible server: started, smoke-tested, measured, and stopped."""

    devices_field: ClassVar[str] = "tensor_parallel"
    uses_gpus: ClassVar[bool] = True

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="Data type of the weights in memory; auto: as stored"
    )
    max_model_len: int | None = Field(
        None,
        ge=1,
        description="Maximum length of prompt plus response, tokens; null: the model's positions, or as many as the KV "
        "cache has room for",
    )
    max_num_seqs: int = Field(256, ge=1, le=65_536, description="Maximum number of sequences per batch; count")
    tensor_parallel: int = Field(1, ge=1, le=64, description="Tensor parallel size; GPUs")
    gpu_memory_share: float = Field(
        0.9, gt=0, le=1, description="Fraction of a GPU's memory for weights, activations and KV cache"
    )
    cpu_cache_gib: int = Field(1, ge=1, le=4096, description="Size of the KV cache on CPU; GiB")
    load: LoadSpec | None = Field(LoadSpec(), description="Load test; null: none")
    start_timeout_s: float = not_identity(1800, "Time limit of a server's start; seconds", gt=0, le=1e6)

    def uses_vllm(self) -> bool:
        return True

    def cpu_cache(self) -> int:
        return self.cpu_cache_gib

    def sequence_lengths(self) -> dict[str, int]:
        lengths = {"max_model_len": self.max_model_len} if self.max_model_len else {}
        both = "load.prompt_tokens and output_tokens"
        return lengths | ({both: self.load.prompt_tokens + self.load.output_tokens} if self.load else {})

    def problems(self) -> list[Problem]:
        if self.load is None:
            return []
        problems = [problem.under("load") for problem in self.load.problems()]
        length = self.load.prompt_tokens + self.load.output_tokens
        if self.max_model_len and length > self.max_model_len:
            problems.append(
                Problem("max_model_len", self.max_model_len, f"at least load's prompt plus response ({length})")
            )
        return problems
