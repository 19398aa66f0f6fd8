"""vLLM's share of a GPU's memory, and the size of its KV cache, which has the keys and values of every token of a
sequence in every layer, in 16 bits.

vLLM starts only if its cache has room for one sequence of the engine's length. Models whose layers attend to a window,
or that compress keys and values, need less.
"""

from typing import Any

from baton.tasks.core.spec import not_identity

BYTES = 2  # bytes of a number
BLOCK_TOKENS = 128  # tokens of a block of the cache on a CPU; fewer on a GPU


def vllm_share(default: float, purpose: str) -> Any:
    """Return a field for vLLM's fraction of a GPU's memory, for specs whose result does not depend on it. It is not in
    the cache key."""
    description = f"vLLM's fraction of a GPU's memory, {purpose}; more allows larger batches"
    return not_identity(default, description, gt=0, le=1)


def kv_cache_bytes(layers: int, kv_heads: int, head_dim: int, tokens: int) -> int:
    """Return the size of the KV cache of one sequence."""
    return 2 * BYTES * layers * kv_heads * head_dim * -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS


def kv_cache_of(config: Any, tokens: int) -> int:
    """Return the size of the KV cache of one sequence, for a model with this config of Transformers."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    return kv_cache_bytes(text.num_hidden_layers, kv_heads, head_dim, tokens)
