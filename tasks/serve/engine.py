"""vLLM, in this process: open a model directory, sample from it, replace its weights.

Importing this module imports vLLM (several seconds), so only engines do. Without a GPU the engine
runs on the CPU build, eagerly, in the calling process: a small model is ready in 3 s, where an
engine process of its own would take 45 s. On a GPU, vLLM's defaults hold.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infra.home import quiet

quiet()
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
# To ask whether there is a GPU begins to use CUDA, which a process that is forked from this one could not do again.
os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
if not torch.cuda.is_available():
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    # vLLM's sampler counts ranks in a function that inductor would compile for 2 to 20 s, for nothing
    torch._dynamo.config.disable = True

from vllm import LLM, SamplingParams  # noqa: E402 — after its environment


@dataclass(frozen=True)
class Completion:
    """What the model wrote after one prompt."""

    text: str  # without the end-of-text token; other special tokens are spelled out
    token_ids: tuple[int, ...]  # with the end-of-text token, where it was reached
    logprobs: tuple[float, ...]  # of each token, in nats, under the distribution it was drawn from
    ended: bool  # by the end-of-text token, not by max_tokens


def open_engine(
    model: Path,
    *,
    max_model_len: int,
    seed: int,
    max_num_seqs: int = 256,
    memory_gib: int = 1,
    gpu_memory_share: float = 0.5,
    dtype: str = "bfloat16",
) -> LLM:
    """Load a Hugging Face directory. `max_model_len`: prompt and completion, in tokens; `memory_gib`:
    room for the KV cache on CPU, `gpu_memory_share`: of the GPU's memory, in all. `seed` decides all
    sampling: the same calls in the same order on the same machine give the same tokens."""
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(memory_gib)
    return LLM(
        str(model),
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        seed=seed,
        dtype=dtype,
        enforce_eager=not on_gpu,  # compiling pays off after minutes, on CPU
        logprobs_mode="processed_logprobs",  # what `Completion.logprobs` says
        disable_log_stats=True,
        **({"gpu_memory_utilization": gpu_memory_share} if on_gpu else {}),
    )


def sample(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    max_tokens: int,
    top_p: float = 1.0,
    n: int = 1,
    seed: int | None = None,
    **more: Any,
) -> list[Completion]:
    """`n` completions for each prompt (token ids, so that nothing is tokenized anew), those of one
    prompt next to each other: n × len(prompts) in all. The engine's seed and the calls before this one
    decide, or a `seed` alone. `more` goes to vLLM's SamplingParams."""
    # copies instead of vLLM's n: one request each, so that every completion has its own place in line
    requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts for _ in range(n)]
    asked = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "skip_special_tokens": False} | more
    params = [SamplingParams(**asked, logprobs=0) for _ in requests]
    if seed is not None:
        llm.reset_prefix_cache()
        if torch.cuda.is_available():
            for number, each in enumerate(params):
                each.seed = seed + number
        else:  # vLLM draws in this process there, and fails on seeds of single requests
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


def replace_weights(llm: LLM, model: Path) -> None:
    """Load other weights of the same shape (`*.safetensors` in `model`) into the live engine."""
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(model)})
    llm.reset_prefix_cache()
