"""The size of the KV cache, as vLLM computes it."""

import pytest
from transformers import Gemma3Config, GPT2Config, PretrainedConfig, Qwen3Config

from baton.tasks.vllm.memory import kv_cache_of

GIB = 2**30


@pytest.mark.parametrize(
    ("config", "tokens", "size"),
    [
        # an example: "To serve at least one request with the model's max seq len (131072), (4.0 GiB KV cache is needed"
        (
            Qwen3Config(num_hidden_layers=16, num_attention_heads=8, num_key_value_heads=8, head_dim=64),
            131_072,
            4 * GIB,
        ),
        (
            Qwen3Config(num_hidden_layers=16, num_attention_heads=8, num_key_value_heads=2, head_dim=64),
            1,
            128 * 8192,
        ),
        (GPT2Config(n_layer=2, n_head=4, n_embd=64), 256, 2 * 2 * 2 * 64 * 256),
        (Gemma3Config(text_config={"num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 256}), 128, 2**17),
    ],
)
def test_one_sequence_needs_what_vllm_says(config: PretrainedConfig, tokens: int, size: int) -> None:
    assert kv_cache_of(config, tokens) == size
