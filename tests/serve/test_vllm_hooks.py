"""The private hooks into vLLM are still needed, in the versions that they are written for, and routes that vLLM
registers besides the API are not served."""

import asyncio
import inspect
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import torch
import vllm
from vllm.entrypoints.llm import LLM
from vllm.entrypoints.openai.api_server import build_app
from vllm.entrypoints.openai.models.protocol import BaseModelPath, LoRAModulePath
from vllm.entrypoints.openai.models.serving import OpenAIModelRegistry, OpenAIServingModels
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.lora.request import LoRARequest
from vllm.platforms.cpu import CpuPlatform
from vllm.utils.argparse_utils import FlexibleArgumentParser

from baton.tasks.serve.door import MIDDLEWARE
from baton.tasks.serve.switch import Backend, Switch
from baton.tasks.vllm.hooks import VERSIONS, serve_adapter_only
from tests.serve.front import front_of
from tests.serve.test_door import BACKEND_KEY, KEY, UPGRADE, WITH_KEY, status
from tests.serve.test_proxy import running

# the module is in openai/ in vLLM 0.27, and in launchers/ in 0.31
if find_spec("vllm.entrypoints.launchers"):
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
else:
    from vllm.entrypoints.openai.cli_args import make_arg_parser


def test_the_hooks_are_written_for_the_installed_version() -> None:
    assert vllm.__version__.startswith(tuple(f"{version}." for version in VERSIONS))


def test_vllm_compiles_the_ranks_of_its_sampler() -> None:
    spec = find_spec("vllm.v1.sample.ops.logprobs")
    assert spec and spec.origin
    assert "torch.compile" in Path(spec.origin).read_text()


def test_vllm_has_no_public_way_to_reload_weights() -> None:
    """`LLM.update_weights` needs a transfer backend, which moves tensors between GPUs."""
    assert not hasattr(LLM, "reload_weights")


def test_vllm_would_compile_flashinfer_s_sampler_without_looking_for_a_compiler() -> None:
    """Once vLLM looks for a compiler, remove VLLM_USE_FLASHINFER_SAMPLER."""
    spec = find_spec("vllm.v1.sample.ops.topk_topp_sampler")
    assert spec and spec.origin
    assert "nvcc" not in Path(spec.origin).read_text()


def test_vllm_leaves_a_request_without_a_name_to_the_weights() -> None:
    """Once a served adapter answers this request, remove `serve_adapter_only`."""
    assert "if not model_name or self.is_base_model(model_name)" in inspect.getsource(OpenAIModelRegistry.check_model)
    assert {"init_static_loras", "is_base_model"} <= vars(OpenAIServingModels).keys()


def test_vllm_s_lora_of_the_logits_has_an_index_for_each_request_on_a_cpu() -> None:
    """Once there is an index for each row, remove `score_prompts_of_adapter`."""
    source = inspect.getsource(PunicaWrapperCPU.add_lora_logits)
    assert source.count("self.sampler_indices") == 2
    assert "self.indices_len[1]" in inspect.getsource(PunicaWrapperCPU.sampler_indices.fget)


class Engine:
    """A replacement for the engine with the attributes that the server's table of models uses. test_vllm.py tests a
    real engine on a CPU."""

    model_config = SimpleNamespace(max_model_len=64)
    renderer = input_processor = None

    async def add_lora(self, adapter: LoRARequest) -> bool:
        return True


def test_a_served_adapter_has_every_name_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """This tests both versions of vLLM, since the one for GPUs starts no server here."""
    for name in ("init_static_loras", "show_available_models", "is_base_model"):
        monkeypatch.setattr(OpenAIServingModels, name, vars(OpenAIServingModels)[name])  # restored after the test
    serve_adapter_only()
    bases = [BaseModelPath(name=name, model_path="base") for name in ("base", "aa", "tuned")]
    models = OpenAIServingModels(Engine(), bases, lora_modules=[LoRAModulePath(name="adapter", path="adapter")])
    asyncio.run(models.init_static_loras())
    assert {models.lora_requests[name].lora_path for name in ("aa", "tuned", "", None)} == {"adapter"}
    assert not models.is_base_model("base") and "base" not in models.lora_requests
    assert [card.id for card in asyncio.run(models.show_available_models()).data] == ["aa", "tuned"]


def test_every_route_of_vllm_needs_the_key_or_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for the proxy and for the server itself, which other users of the machine can reach. The routes are
    those that vLLM registers for any model, including those of its development mode."""
    monkeypatch.setenv("VLLM_API_KEY", BACKEND_KEY)
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    if not torch.cuda.is_available():  # vLLM for GPUs then detects no platform, and so has no defaults of its arguments
        monkeypatch.setattr(vllm.platforms, "_current_platform", CpuPlatform())
    words = ["--middleware", MIDDLEWARE, "--enable-fault-tolerance"]
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    tasks = ("generate", "render", "transcription", "realtime", "embed", "classify", "score", "token_embed")
    application = build_app(arguments, tasks)
    application.state.log_stats = False  # a setting of the engine, which does not exist here
    routes = [(method, route.path) for route in application.routes for method in getattr(route, "methods", ["GET"])]
    assert {("POST", "/invocations"), ("POST", "/v1/chat/completions"), ("GET", "/metrics")} <= set(routes)
    switch = Switch()
    with running(application) as server:
        monkeypatch.setenv("VLLM_API_KEY", KEY)
        with front_of(switch) as url, httpx.Client() as client:
            switch.turn(Backend(server, "aa" * 32, key=BACKEND_KEY))
            for method, path in routes:
                for every in (method, "OPTIONS"):
                    assert client.request(every, f"{server}{path}").status_code == 401
                    assert client.request(every, f"{url}{path}").status_code in (401, 404)
                assert status(server, f"GET {path} HTTP/1.1\r\nHost: x\r\n{UPGRADE}\r\n") == 403
                if not path.startswith(("/v1/", "/health")):
                    assert client.request(method, f"{url}{path}", headers=WITH_KEY).status_code == 404
            assert client.get(f"{url}/v1/responses", headers=WITH_KEY).status_code == 405  # the answer comes from vLLM
            assert client.get(f"{server}/version", headers={"authorization": f"Bearer {BACKEND_KEY}"}).is_success
