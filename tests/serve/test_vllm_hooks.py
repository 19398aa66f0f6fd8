"""The private hooks into vLLM are still needed, in the versions they are written for."""

from importlib.util import find_spec
from pathlib import Path

import vllm
from vllm.entrypoints.llm import LLM

from tasks.serve.vllm_hooks import VERSIONS


def test_the_hooks_are_written_for_the_installed_version() -> None:
    assert vllm.__version__.startswith(tuple(f"{version}." for version in VERSIONS))


def test_vllm_compiles_the_ranks_of_its_sampler() -> None:
    spec = find_spec("vllm.v1.sample.ops.logprobs")
    assert spec and spec.origin
    assert "torch.compile" in Path(spec.origin).read_text()


def test_vllm_has_no_public_way_to_reload_weights() -> None:
    """`LLM.update_weights` needs a transfer backend, which moves tensors between GPUs."""
    assert not hasattr(LLM, "reload_weights")
