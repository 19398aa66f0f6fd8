"""A model's architecture: all numbers that determine the shapes of its weights and its forward pass."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding (Su et al. 2021), and its scaling for long contexts, with config.json's names."""

    theta: float
    scaling: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0  # llama3 and yarn: context length before scaling
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn: scales cosines and sines
    truncate: bool = True  # yarn: round the range of dimensions to whole numbers


@dataclass(frozen=True)
class Experts:
    """A mixture of experts that replaces the feed-forward of every layer from `first` on."""

    count: int
    top_k: int
    ffn: int
    shared_ffn: int = 0  # size of the expert that sees every token; 0 if there is none
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalized: bool = True  # the chosen experts' weights sum to 1
    bias: bool = False  # a bias on the scores that affects only which experts are chosen (DeepSeek-V3)
    groups: int = 1  # number of groups of experts
    top_groups: int = 1  # number of groups that experts are chosen from
    scale: float = 1.0  # factor of the chosen experts' weights
    first: int = 0  # earlier layers are dense


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2), whose queries, keys and values come from low-rank projections."""

    q_rank: int | None  # None if queries come directly from the hidden state
    kv_rank: int
    nope: int  # dimensions of a head's query and key without rotary embedding
    rope: int  # dimensions with rotary embedding
    value: int  # dimensions of a head's value


@dataclass(frozen=True)
class Architecture:
    """A decoder. Sizes are those of the full model, independent of its parallel layout."""

    vocab: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    max_positions: int
    norm_eps: float
    tied: bool  # whether the output projection is the embedding
    rope: Rope
    local_rope: Rope | None = None  # that of layers with a sliding window, if different (Gemma 3)
    windows: tuple[int | None, ...] = ()  # sliding window of each layer in tokens, including the current one
    activation: Literal["silu", "gelu_tanh"] = "silu"
    qkv_bias: bool = False
    qk_norm: Literal["none", "head", "whole"] = "none"  # norm of each head, or of all heads together (OLMo 2)
    norms: Literal["before", "after", "both"] = "before"  # attention and feed-forward
    unit_norms: bool = False  # norm weights are stored minus one (Gemma)
    embedding_scale: float = 1.0
    attention_scale: float | None = None  # scale of the scores; None: head_dim ** -0.5
    attention_cap: float | None = None  # cap * tanh(score / cap)
    logit_cap: float | None = None
    experts: Experts | None = None
    latent: Latent | None = None

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer >= self.experts.first

    @property
    def uniform(self) -> bool:
        """Return whether all layers have the same weights, which Megatron then stacks along a first axis."""
        return self.experts is None or self.experts.first == 0

    def size(self, name: str) -> int:
        """Return a dimension by its name in the families' tables."""
        experts, latent = self.experts, self.latent
        sizes = {
            "vocab": self.vocab,
            "hidden": self.hidden,
            "head_dim": self.head_dim,
            "queries": self.heads * self.head_dim,
            "keys": self.kv_heads * self.head_dim,
            "ffn": self.ffn,
        }
        if experts:
            sizes |= {"experts": experts.count, "expert_ffn": experts.ffn, "shared_ffn": experts.shared_ffn}
        if latent:
            sizes |= {
                "q_rank": latent.q_rank or 0,
                "kv_rank": latent.kv_rank,
                "latent_queries": self.heads * (latent.nope + latent.rope),
                "kv_rank_and_rope": latent.kv_rank + latent.rope,
                "latent_keys_values": self.heads * (latent.nope + latent.value),
                "values": self.heads * latent.value,
            }
        return sizes[name]
