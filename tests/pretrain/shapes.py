"""The shapes of public models, from their config.json."""

from baton.tasks.models.model_spec import ExpertsSpec, ModelSpec

LLAMA_3_8B = ModelSpec(
    family="llama",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn_hidden=14336,
    max_positions=8192,
    vocab_size=128256,
    tied_embeddings=False,
)
QWEN3_0_6B = ModelSpec(
    layers=28,
    hidden=1024,
    heads=16,
    kv_heads=8,
    head_dim=128,
    ffn_hidden=3072,
    max_positions=40960,
    vocab_size=151936,
)
QWEN3_30B_A3B = ModelSpec(
    family="qwen3_moe",
    layers=48,
    hidden=2048,
    heads=32,
    kv_heads=4,
    head_dim=128,
    ffn_hidden=6144,  # no layer is dense
    experts=ExpertsSpec(count=128, top_k=8, ffn_hidden=768),
    max_positions=40960,
    vocab_size=151936,
    tied_embeddings=False,
)
MISTRAL_7B = ModelSpec(
    family="mistral",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn_hidden=14336,
    max_positions=32768,
    sliding_window=4096,
    vocab_size=32000,
    tied_embeddings=False,
)
