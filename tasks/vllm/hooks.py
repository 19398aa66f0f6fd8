"""Hooks into private parts of vLLM, for everything that its public API cannot do. Importing this module imports nothing
heavy.

VERSIONS are those for which the hooks are written (the one for CPUs and the one for GPUs);
tests/serve/test_vllm_hooks.py fails for others, and when a hook is no longer needed.
"""

import os
import runpy
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from baton.infra.process.imports import large_imports

if TYPE_CHECKING:
    from vllm import LLM

VERSIONS = ("0.27", "0.31")
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vllm/config/lora.py


def prepare_process() -> bool:
    """Configure vLLM for this machine before it is imported. Returns whether there is a GPU.

    The search for a GPU initializes CUDA, which a forked process could not do again, so workers are spawned.
    Without a GPU, the engine runs in the calling process (a small model is ready in 3 s, an engine process takes 45 s),
    and nothing is compiled: the sampler's token ranks alone take inductor 2 to 20 s.
    """
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    import torch

    from baton.tasks.hardware import cpu_matmul

    if torch.cuda.is_available():
        # Otherwise FlashInfer compiles its sampler when a server starts, and fails if there is no nvcc (vLLM 0.31,
        # while `flashinfer_sampler_supported` does not look for one). A driver and the pinned wheels must suffice.
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        return True
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    torch._dynamo.config.disable = True  # the variable has been read if something imported torch._dynamo
    cpu_matmul.prepare()
    return False


def max_lora_rank(rank: int) -> int:
    """Return vLLM's `max_lora_rank` for an adapter of this rank, which is at most 512."""
    return next(allowed for allowed in LORA_RANKS if allowed >= rank)


def reload_weights(llm: "LLM", **source: Any) -> None:
    """Load other weights of the same shapes into the live engine, and drop its prefix cache. `source` is vLLM's
    `weights_path` (a folder of safetensors) or `weights_iterator` ((name, tensor) pairs)."""
    llm.collective_rpc("reload_weights", kwargs=source)
    llm.reset_prefix_cache()


def before_each_step(llm: "LLM", call: Callable[[], None]) -> None:
    """Call `call` before each of the engine's steps."""
    engine = llm.llm_engine
    original_step = engine.step

    def step(*args: Any, **more: Any) -> Any:
        call()
        return original_step(*args, **more)

    engine.step = step  # type: ignore[method-assign]


def leave_transformers_alone() -> None:
    """Keep vLLM from changing classes of Transformers. For an architecture that it runs on Transformers' code, vLLM
    changes the class of the decoder for torch.compile, and with it every other model of that class in this process: a
    trainer's model would look for vLLM's attributes. With this hook the engine runs uncompiled."""
    from vllm.model_executor.models.transformers.base import Base

    Base._decorate_for_torch_compile = lambda self, **kwargs: None


def serve_adapter_only() -> None:
    """Let the adapter answer requests to every served name except the first, which is the base's and is not served, and
    requests without a model, which vLLM's server otherwise sends to the base."""
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels as Models

    load = Models.init_static_loras

    async def load_for_all_names(self: Models) -> None:
        await load(self)
        names = [path.name for path in self.base_model_paths[1:]]
        self.lora_requests = dict.fromkeys([*names, "", None], *self.lora_requests.values())

    async def show_names(self: Models) -> Any:
        listed = await self.registry.show_available_models()
        listed.data = listed.data[1:]
        return listed

    Models.init_static_loras, Models.show_available_models = load_for_all_names, show_names
    Models.is_base_model = lambda self, name: False


@cache
def score_prompts_of_adapter() -> None:
    """Let an engine with one adapter for all requests compute log-probabilities of several prompts on a CPU. There
    vLLM's LoRA of the logits has an index for each request, while these logits have a row for each token."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU as Wrapper

    original = Wrapper.add_lora_logits

    def add_lora_logits(self: Wrapper, y: Any, x: Any, *others: Any, **more: Any) -> None:
        self._sampler_indices[: len(x)] = self._sampler_indices[0].clone()
        self.indices_len[1] = len(x)
        original(self, y, x, *others, **more)

    Wrapper.add_lora_logits = add_lora_logits


def run_api_server() -> None:
    """Run vLLM's OpenAI server with the arguments in sys.argv. Processes that it spawns import the caller's main module
    again instead of the whole server: on two cores it is ready in 18 s instead of 26."""
    with large_imports():
        import vllm.entrypoints.openai.cli_args  # noqa: F401
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=False)
