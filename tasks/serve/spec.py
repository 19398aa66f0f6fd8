"""How a model is served, and what is measured of it."""

from typing import Any, Literal

from pydantic import Field

from tasks.spec import Problem, Spec, StageSpec

MOST_CONCURRENT = 1024


def vllm_share(default: float, what_for: str) -> Any:
    """vLLM's share of a GPU's memory, where no result depends on it: it enters no cache key."""
    description = f"Of a GPU's memory, vLLM's part, {what_for}; more: larger batches of requests"
    return Field(default, gt=0, le=1, description=description, json_schema_extra={"identity": False})


class LoadSpec(Spec):
    """A load: so many clients, each of which sends its next request when the last one is answered."""

    concurrency: list[int] = Field(
        [1, 2, 4, 8, 16, 32, 64], min_length=1, max_length=20, description="Clients at a time, one level each; count"
    )
    requests_per_client: int = Field(8, ge=1, le=10_000, description="Requests of each client at each level; count")
    least_requests: int = Field(32, ge=1, le=1_000_000, description="Requests of a level at least; count")
    prompt_tokens: int = Field(128, ge=1, description="Length of a prompt (random tokens); tokens")
    output_tokens: int = Field(64, ge=2, description="Length of an answer, which the end of text does not cut; tokens")
    seed: int = Field(0, ge=0, lt=2**31, description="Of the prompts")

    def problems(self) -> list[Problem]:
        wrong = [each for each in self.concurrency if not 1 <= each <= MOST_CONCURRENT]
        found = [Problem("concurrency", each, f"1 to {MOST_CONCURRENT}") for each in wrong]
        if self.concurrency[0] != 1 or self.concurrency != sorted(set(self.concurrency)):
            found.append(Problem("concurrency", self.concurrency, "1 first, then larger ones, each once"))
        return found


class ServeSpec(StageSpec):
    """vLLM's OpenAI-compatible server: brought up, asked a chat and a completion, measured, and ended."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="Of the weights in memory; auto is as they are stored"
    )
    max_model_len: int | None = Field(
        None, ge=1, description="Prompt and answer at most, tokens; null: as many as the model has positions"
    )
    max_num_seqs: int = Field(256, ge=1, le=65_536, description="Requests that are worked on at a time; count")
    tensor_parallel: int = Field(1, ge=1, le=64, description="Accelerators that share the weights; count")
    gpu_memory_share: float = Field(0.9, gt=0, le=1, description="Of a GPU's memory, for weights and KV cache")
    cpu_cache_gib: int = Field(1, ge=1, le=4096, description="KV cache where there is no GPU; GiB")
    load: LoadSpec | None = Field(LoadSpec(), description="What is measured; null: nothing")
    start_timeout_s: float = Field(
        1800, gt=0, description="How long a server may take to load; seconds", json_schema_extra={"identity": False}
    )

    def sequence_lengths(self) -> dict[str, int]:
        """The longest sequences that the stage makes, in tokens, by the field that sets them."""
        asked = {"max_model_len": self.max_model_len} if self.max_model_len else {}
        both = "load.prompt_tokens and output_tokens"
        return asked | ({both: self.load.prompt_tokens + self.load.output_tokens} if self.load else {})

    def problems(self) -> list[Problem]:
        if self.load is None:
            return []
        found = [problem.under("load") for problem in self.load.problems()]
        length = self.load.prompt_tokens + self.load.output_tokens
        if self.max_model_len and length > self.max_model_len:
            found.append(Problem("max_model_len", self.max_model_len, f"at least load's prompt and answer ({length})"))
        return found
