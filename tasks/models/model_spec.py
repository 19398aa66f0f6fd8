"""The spec of a model: a decoder of one of the families with RMSNorm, SwiGLU, RoPE and grouped-query attention, dense
or with a mixture of experts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from baton.infra.tracking.flatten import leaves
from baton.tasks.core.spec import Problem, Spec


@dataclass(frozen=True)
class Family:
    """The differences between a family's layers and those of the others."""

    qk_norm: bool = False  # RMSNorm on each head's query and key
    qkv_bias: bool = False
    sliding_window: bool = False  # whether it supports one
    experts: bool = False


FAMILIES = {
    "llama": Family(),
    "mistral": Family(sliding_window=True),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "qwen3_moe": Family(qk_norm=True, experts=True),
    "mixtral": Family(sliding_window=True, experts=True),
}


# fields that affect neither the weights' shapes nor the forward pass
FREE: Any = {"max_positions": True, "init_std": True, "experts": {"aux_loss", "z_loss"}}


class ExpertsSpec(Spec):
    """A mixture of experts that replaces each layer's feed-forward: a softmax router, top k of n."""

    count: int = Field(8, ge=2, le=4096, description="Experts in each layer")
    top_k: int = Field(2, ge=1, le=64, description="Experts that each token goes to")
    ffn_hidden: int = Field(256, ge=8, le=262144, description="Width of one expert's SwiGLU")
    shared_ffn_hidden: int = Field(0, ge=0, le=262144, description="Width of the expert that sees every token; 0: none")
    normalize_top_k: bool = Field(True, description="Normalize the chosen experts' weights to sum to 1")
    aux_loss: float = Field(1e-3, ge=0, le=1, description="Weight of the load-balancing loss, computed per sequence")
    z_loss: float = Field(0.0, ge=0, le=1, description="Weight of the router's z-loss")


class ModelSpec(Spec):
    """A decoder: RMSNorm, SwiGLU, RoPE, grouped-query attention; the rest depends on the family."""

    family: Literal["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral"] = Field(
        "qwen3",
        description="Model family: qwen2 has QKV biases, qwen3 and qwen3_moe QK-norm, qwen3_moe and mixtral experts",
    )
    layers: int = Field(6, ge=1, le=256, description="Transformer layers")
    hidden: int = Field(256, ge=8, le=65536, description="Width of the residual stream")
    heads: int = Field(4, ge=1, le=1024, description="Query heads")
    kv_heads: int = Field(2, ge=1, le=1024, description="Key/value heads (query groups); divides heads")
    head_dim: int = Field(64, ge=2, le=1024, description="Size of one head; even, for RoPE")
    ffn_hidden: int = Field(768, ge=8, le=262144, description="Width of the SwiGLU feed-forward layer (not of experts)")
    experts: ExpertsSpec | None = Field(None, description="Mixture of experts; for qwen3_moe and mixtral")
    max_positions: int = Field(512, ge=8, le=16777216, description="Longest sequence the model supports, in tokens")
    sliding_window: int | None = Field(
        None, ge=1, lt=2**31, description="Tokens that a token attends to, itself included"
    )
    rope_theta: float = Field(10000.0, gt=1, le=1e15, description="Base of the rotary frequencies")
    rope_scaling_factor: float | None = Field(
        None, gt=1, le=1024, description="Llama 3.1's scaling of the rotary frequencies, from 8,192 positions"
    )
    norm_eps: float = Field(1e-6, gt=0, lt=1e-2, description="Epsilon of RMSNorm")
    init_std: float = Field(0.02, gt=0, lt=1, description="Standard deviation of the initial weights")
    vocab_size: int | None = Field(
        None,
        ge=8,
        le=10_000_000,
        description="Rows of the embedding, at least the tokenizer's size (default)",
    )
    tied_embeddings: bool = Field(True, description="Output projection shares the embedding's weights")

    def shape(self) -> Family:
        return FAMILIES[self.family]

    def problems(self) -> list[Problem]:
        problems = []
        if self.heads % self.kv_heads:
            problems.append(Problem("kv_heads", self.kv_heads, f"must divide heads ({self.heads}) without remainder"))
        if self.head_dim % 2:
            problems.append(Problem("head_dim", self.head_dim, "must be even: RoPE rotates pairs of dimensions"))
        if self.shape().experts and self.experts is None:
            problems.append(Problem("experts", None, f"required by family: {self.family}"))
        if self.experts and not self.shape().experts:
            allowed = f"only with {_families(lambda family: family.experts)}; family is {self.family}"
            problems.append(Problem("experts", "on", allowed))
        if self.experts and self.experts.top_k > self.experts.count:
            problems.append(
                Problem("experts.top_k", self.experts.top_k, f"at most experts.count ({self.experts.count})")
            )
        if self.experts and self.experts.top_k == 1 and self.experts.normalize_top_k:
            allowed = "at least 2, or, with qwen3_moe, normalize_top_k: false"
            why = "the weight of a single expert, normalized, is always 1, and the router would not learn"
            problems.append(Problem("experts.top_k", 1, f"{allowed}: {why}"))
        if self.sliding_window and not self.shape().sliding_window:
            allowed = f"only with {_families(lambda family: family.sliding_window)}; family is {self.family}"
            problems.append(Problem("sliding_window", self.sliding_window, allowed))
        if self.rope_scaling_factor and self.family != "llama":
            allowed = f"only with family: llama; family is {self.family}"
            problems.append(Problem("rope_scaling_factor", self.rope_scaling_factor, allowed))
        return problems

    def unlike(self, initial: "ModelSpec") -> dict[str, tuple[Any, Any]]:
        """Return the fields that differ from those of a model whose weights training would start with, as (own,
        initial) values."""
        own, given = (leaves(model.model_dump(exclude=FREE)) for model in (self, initial))
        if self.experts:
            del own["ffn_hidden"]  # every layer has experts instead
        return {name: (value, given.get(name)) for name, value in own.items() if value != given.get(name)}

    def parameters(self, vocab_size: int) -> int:
        """Return the exact number of weights."""
        return self._parameters(self.experts.count if self.experts else 0, vocab_size)

    def active_parameters(self, vocab_size: int) -> int:
        """Return the number of weights used per token: all of a dense model, but only those of the selected experts of
        a mixture."""
        return self._parameters(self.experts.top_k if self.experts else 0, vocab_size)

    def _parameters(self, counted_experts: int, vocab_size: int) -> int:
        feed_forward = 3 * self.hidden * self.ffn_hidden
        if self.experts:
            width = counted_experts * self.experts.ffn_hidden + self.experts.shared_ffn_hidden
            feed_forward = 3 * self.hidden * width + self.hidden * self.experts.count
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        attention += 2 * self.head_dim if self.shape().qk_norm else 0
        attention += self.head_dim * (self.heads + 2 * self.kv_heads) if self.shape().qkv_bias else 0
        layer = attention + feed_forward + 2 * self.hidden
        embeddings = vocab_size * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.hidden


def _families(predicate: Callable[[Family], bool]) -> str:
    return ", ".join(name for name, family in FAMILIES.items() if predicate(family))
