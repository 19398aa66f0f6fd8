"""The facts read from the sources of vLLM and Transformers agree with the libraries' own answers."""

import pytest
import transformers
from vllm.model_executor.models.registry import _VLLM_MODELS

from baton.tasks.vllm.architectures import has_architecture, listed_architectures, runs_on_transformers, unsupported


def test_the_registry_is_read_without_importing_it() -> None:
    assert len(listed_architectures()) > 200
    assert listed_architectures().keys() <= _VLLM_MODELS.keys()
    assert {
        "LlamaForCausalLM",
        "Qwen3MoeForCausalLM",
        "Gemma3ForConditionalGeneration",
    } <= listed_architectures().keys()


@pytest.mark.parametrize(
    ("kind", "name"),
    [("starcoder2", "Starcoder2"), ("biogpt", "BioGpt"), ("codegen", "CodeGen"), ("gpt_neo", "GPTNeo"), ("glm", "Glm")],
)
def test_whether_transformers_code_can_be_used(kind: str, name: str) -> None:
    assert runs_on_transformers(kind) == getattr(transformers, f"{name}ForCausalLM").is_backend_compatible()


def test_what_nobody_knows_is_left_to_the_stage() -> None:
    assert has_architecture("NobodysForCausalLM", "nobodys")
    assert has_architecture("NobodysForCausalLM", "../nobodys")
    assert not has_architecture("BioGptForCausalLM", "biogpt")


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_an_activation_that_a_class_lacks_is_refused(name: str) -> None:
    assert unsupported(name, {"hidden_act": "silu"}) == [] == unsupported(name, {})
    assert unsupported(name, {"hidden_act": "gelu"}) == [
        f"hidden_act: silu, the only activation of vLLM's {name}; this one: gelu"
    ]


@pytest.mark.parametrize(
    "name", ["GemmaForCausalLM", "Gemma3ForCausalLM", "Starcoder2ForCausalLM", "NobodysForCausalLM"]
)
def test_an_activation_of_another_class_is_not(name: str) -> None:
    assert unsupported(name, {"hidden_act": "gelu_pytorch_tanh"}) == []


@pytest.mark.parametrize(
    ("windows", "refused"),
    [
        ({"use_sliding_window": False, "max_window_layers": 1}, False),
        ({"use_sliding_window": True, "max_window_layers": 0}, False),
        ({"use_sliding_window": True, "max_window_layers": 1}, True),
        ({"layer_types": ["full_attention", "sliding_attention"], "max_window_layers": 1}, True),
        ({"layer_types": ["full_attention"] * 2, "max_window_layers": 1}, False),
    ],
)
def test_windows_in_some_layers_of_qwen2_are_refused(windows: dict[str, object], refused: bool) -> None:
    assert bool(unsupported("Qwen2ForCausalLM", {"num_hidden_layers": 2} | windows)) == refused
