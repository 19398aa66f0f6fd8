"""Sample from a model with vLLM in this process.

Importing this module imports vLLM (several seconds), so only engines do. Without a GPU the engine runs eagerly in the
calling process (see vllm_hooks.py). On a GPU, vLLM's defaults apply.
"""

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infra.paths import quiet
from tasks.adapted import ADAPTER, Model
from tasks.serve.vllm_hooks import max_lora_rank, prepare_process

quiet()
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
ON_GPU = prepare_process()
CPU_CACHE_GIB = 1  # KV cache; see CPU_CACHE in tasks/posttrain/memory.py

STEP_TOKENS = 4096  # that an engine of whole prompts computes in a step

from vllm import LLM, SamplingParams  # noqa: E402 — after its environment is set
from vllm.distributed import cleanup_dist_env_and_memory  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402


class Engine(LLM):  # type: ignore[misc]
    """An LLM that applies the model's adapter, if it has one, to every request."""

    def __init__(self, model: Model, **options: Any) -> None:
        self.lora = LoRARequest(ADAPTER, 1, str(model.adapter)) if model.adapter else None
        if self.lora:
            options |= {"enable_lora": True, "max_lora_rank": max_lora_rank(model.rank)}
        files = str(model.directory)
        super().__init__(str(model.weights), tokenizer=files, generation_config=files, **options)

    def generate(self, *requests: Any, **options: Any) -> Any:
        return super().generate(*requests, **{"lora_request": self.lora} | options)


@dataclass(frozen=True)
class Completion:
    """A completion of one prompt."""

    text: str  # without the end-of-text token, with other special tokens
    token_ids: tuple[int, ...]  # with the end-of-text token, if it was reached
    logprobs: tuple[float, ...]  # per token, in nats, under the distribution it was drawn from
    ended: bool  # by the end-of-text token, not by max_tokens


def open_engine(
    model: Path,
    *,
    max_model_len: int,
    seed: int,
    max_num_seqs: int = 256,
    gpu_memory_share: float = 0.5,
    dtype: str = "bfloat16",
    base: Path | None = None,
    whole_prompts: bool = False,
    **options: Any,
) -> LLM:
    """Load a Hugging Face directory, or an adapter's with the weights in `base`. `max_model_len` limits prompt plus
    completion, in tokens; `gpu_memory_share` is the fraction of the GPU's memory to use. `seed` determines all
    sampling: the same calls in the same order on the same machine give the same tokens. `whole_prompts`: compute no
    prompt in parts, without which the CPU build fails on requests with seeds of their own (it would turn back a
    generator, which torch's on CPUs cannot). `options` go to vLLM's LLM."""
    if not ON_GPU:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(CPU_CACHE_GIB)
    opened = Model(model, base or model)
    return Engine(
        opened,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        seed=seed,
        dtype=dtype,
        enforce_eager=not ON_GPU,  # on CPU, compilation pays off only after minutes
        logprobs_mode="processed_logprobs",  # see `Completion.logprobs`
        disable_log_stats=True,
        **({"gpu_memory_utilization": gpu_memory_share} if ON_GPU else {}),
        **(
            {"enable_chunked_prefill": False, "max_num_batched_tokens": max(max_model_len, STEP_TOKENS)}
            if whole_prompts
            else {}
        ),
        **options,
    )


def close_engines() -> None:
    """Free the memory of engines that are no longer referenced, and vLLM's process group in this process."""
    gc.collect()
    cleanup_dist_env_and_memory()


def sample(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    max_tokens: int,
    top_p: float = 1.0,
    n: int = 1,
    seed: int | None = None,
    seeds: Sequence[int] | None = None,
    **options: Any,
) -> list[Completion]:
    """Sample `n` completions of each prompt (token ids), n × len(prompts) in all, those of one prompt consecutive. They
    are determined by `seed`, by `seeds` of each, or else by the engine's seed and the previous calls. `options` go to
    vLLM's SamplingParams."""
    # one request per completion instead of vLLM's n, so that each is scheduled by itself
    requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts for _ in range(n)]
    common = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "skip_special_tokens": False}
    params = [SamplingParams(**common | options, logprobs=0) for _ in requests]
    if seeds is not None:
        for request_params, own in zip(params, seeds, strict=True):
            request_params.seed = own
    if seed is not None:
        llm.reset_prefix_cache()
        if ON_GPU:
            for number, request_params in enumerate(params):
                request_params.seed = seed + number
        else:  # the CPU build samples in this process, and fails on per-request seeds
            torch.manual_seed(seed)
    outputs = [request.outputs[0] for request in llm.generate(requests, params, use_tqdm=False)]
    return [
        Completion(
            text=output.text,
            token_ids=tuple(output.token_ids),
            logprobs=tuple(step[token].logprob for token, step in zip(output.token_ids, output.logprobs, strict=True)),
            ended=output.finish_reason == "stop",
        )
        for output in outputs
    ]
