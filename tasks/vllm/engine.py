"""Sample from a model with vLLM in this process.

Importing this module imports vLLM (several seconds), so only engines do. Without a GPU the engine runs eagerly in the
calling process (see hooks.py). On a GPU, vLLM's defaults apply.
"""

import gc
import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from baton.infra.paths import quiet
from baton.tasks.core.job import StageError
from baton.tasks.hardware.machine import this_machine
from baton.tasks.hardware.memory import USABLE
from baton.tasks.models.adapter_base import ADAPTER, ModelFolders
from baton.tasks.models.agreement import check_agreement, read_probe
from baton.tasks.models.tokenizers import alone, check
from baton.tasks.vllm.hooks import max_lora_rank, prepare_process, score_prompts_of_adapter
from baton.tasks.vllm.memory import kv_cache_of

quiet()
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
ON_GPU = prepare_process()
CPU_CACHE_GIB = 1  # KV cache; see CPU_CACHE in tasks/posttrain/memory.py
GIB = 1 << 30

STEP_TOKENS = 4096  # tokens in a step of an engine that does not split prompts

from vllm import LLM, SamplingParams  # noqa: E402 — after its environment is set
from vllm.distributed import cleanup_dist_env_and_memory  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402

log = logging.getLogger(__name__)


class Engine(LLM):  # type: ignore[misc]
    """An LLM that applies the model's adapter, if it has one, to every request."""

    def __init__(self, model: ModelFolders, **options: Any) -> None:
        self.lora = LoRARequest(ADAPTER, 1, str(model.adapter)) if model.adapter else None
        if self.lora:
            options |= {"enable_lora": True, "max_lora_rank": max_lora_rank(model.rank)}
            if not ON_GPU:
                score_prompts_of_adapter()
        files, tokenizer = str(model.directory), str(alone(model.directory))
        super().__init__(str(model.weights), tokenizer=tokenizer, generation_config=files, **options)
        check(self.get_tokenizer(), model.directory)

    def generate(self, *requests: Any, **options: Any) -> Any:
        return super().generate(*requests, **{"lora_request": self.lora} | options)


@dataclass(frozen=True)
class Completion:
    """A completion of one prompt."""

    token_ids: tuple[int, ...]  # includes the end-of-text token if it was reached
    logprobs: tuple[float, ...]  # for each token, in nats, under the distribution that it was drawn from
    ended: bool  # whether the end-of-text token ended it, not max_tokens


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
    sampling: the same calls in the same order on the same machine give the same tokens. With `whole_prompts` no prompt
    is split into chunks, with which the CPU build fails on requests with their own seeds: it would have to rewind a
    generator, which torch's generators on CPUs do not support. `options` are passed to vLLM's LLM."""
    opened = ModelFolders(model, base or model)
    with _errors_named(opened):
        if not ON_GPU:
            os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(cpu_cache_gib(opened.weights, max_model_len))
        engine = Engine(
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
        check_engine(engine, model)
    return engine


@contextmanager
def _errors_named(model: ModelFolders) -> Iterator[None]:
    """Raise StageError if vLLM cannot load or run the model."""
    try:
        yield
    except StageError:
        raise
    except Exception as error:  # the code of an architecture may raise anything for an unsupported feature
        log.warning("vLLM cannot run %s", model.weights, exc_info=error)
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = " ".join(" ".join(lines[:3]).split())[:400]
        raise StageError(f"vLLM cannot run {model.weights}: {type(error).__name__}: {reason}") from error


def check_engine(llm: LLM, model: Path) -> None:
    """Raise StageError if the engine computes another model than Transformers according to the model's probe."""
    if expected := read_probe(model):
        ids = expected.ids[: llm.llm_engine.model_config.max_model_len - 1]
        (scored,) = scores(llm, [ids])
        check_agreement(expected, [logprob for logprob, _ in scored], "vLLM")
        llm.reset_prefix_cache()


def cpu_cache_gib(weights: Path, max_model_len: int) -> int:
    """Return the size of an engine's KV cache on a CPU: larger than the default if one sequence needs more. Raises
    StageError."""
    needed = kv_cache_of(AutoConfig.from_pretrained(weights), max_model_len)
    stored = sum(file.stat().st_size for file in weights.glob("*.safetensors"))
    memory = this_machine().memory_bytes
    if needed > CPU_CACHE_GIB * GIB and needed + stored > USABLE * memory:
        raise StageError(
            f"a sequence of {max_model_len} tokens needs a KV cache of {needed / GIB:.1f} GiB beside "
            f"{stored / GIB:.1f} GiB of weights; this machine has {memory / GIB:.1f} GiB of memory: limit the "
            "sequences (evaluate.max_model_len; max_prompt_tokens and max_new_tokens of a post-training stage)"
        )
    return max(CPU_CACHE_GIB, math.ceil(needed / GIB))


def close_engines() -> None:
    """Free the memory of engines that are no longer referenced, and vLLM's process group in this process."""
    gc.collect()
    cleanup_dist_env_and_memory()


def sample(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    max_tokens: int | Sequence[int],
    top_p: float = 1.0,
    n: int = 1,
    seed: int | None = None,
    seeds: Sequence[int] | None = None,
    **options: Any,
) -> list[Completion]:
    """Sample `n` completions of each prompt (token ids), n × len(prompts) in all; those of one prompt are consecutive.
    They are determined by `seed`, by `seeds` for each prompt, or else by the engine's seed and the previous calls.
    `max_tokens` may be a list with a limit for each prompt. `options` are passed to vLLM's SamplingParams."""
    # one request per completion instead of vLLM's n, so that each is scheduled by itself
    requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts for _ in range(n)]
    common = {"temperature": temperature, "top_p": top_p, "skip_special_tokens": False}
    most = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else max_tokens
    params = [SamplingParams(**common | options, max_tokens=most[at // n], logprobs=0) for at in range(len(requests))]
    if seeds is not None:
        for request_params, request_seed in zip(params, seeds, strict=True):
            request_params.seed = request_seed
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
            token_ids=tuple(output.token_ids),
            logprobs=tuple(step[token].logprob for token, step in zip(output.token_ids, output.logprobs, strict=True)),
            ended=output.finish_reason == "stop",
        )
        for output in outputs
    ]


def scores(llm: LLM, windows: Sequence[Sequence[int]]) -> list[list[tuple[float, int]]]:
    """Return (log-probability in nats, rank) of every token of each window but the first; the likeliest token has rank
    1."""
    # vLLM generates at least one token; it is discarded
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    requests = [{"prompt_token_ids": list(window)} for window in windows]
    scored = []
    for window, output in zip(windows, llm.generate(requests, params, use_tqdm=False), strict=True):
        steps = zip(window[1:], output.prompt_logprobs[1:], strict=True)
        scored.append([(step[token].logprob, step[token].rank) for token, step in steps])
    return scored
