"""A forward pass in plain torch over weights in Megatron's layout, one layer at a time.

This is the Megatron side of an audit. It computes the results of a checkpoint without Megatron, process groups or
memory for more than one layer, in fp32 on the CPU. tests/convert/test_megatron_forward.py compares it with
Megatron-Core's GPTModel and with transformers.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.tasks.convert.architecture import Architecture, Experts, Latent
from baton.tasks.convert.rotary import rotate

Read = Callable[[str, int | None, int | None], Tensor]

# Megatron's names for the norm before ...
BEFORE_ATTENTION = "self_attention.linear_qkv.layer_norm_weight"
BEFORE_LATENT_ATTENTION = "input_layernorm.weight"
BEFORE_DENSE = "mlp.linear_fc1.layer_norm_weight"
BEFORE_EXPERTS = "pre_mlp_layernorm.weight"
# ... and after
AFTER_ATTENTION = "self_attention.linear_proj.post_layernorm.weight"
AFTER_FEED_FORWARD = "mlp.linear_fc2.post_layernorm.weight"

OUTPUT_ROWS = 16384  # rows of the output projection cast to fp32 at a time


class Decoder:
    """A model that gets its weights from `read`, by name in the families' tables ("*" for the layer), layer and expert.

    Hidden states are (batch, length, hidden) in fp32; sequences begin at position 0.
    """

    def __init__(self, model: Architecture, read: Read) -> None:
        self.model = model
        self.read = read

    @torch.no_grad()
    def embed(self, tokens: Tensor) -> Tensor:
        """Return the first layer's hidden state for tokens (batch, length)."""
        table = self.read("embedding.word_embeddings.weight", None, None)
        return table[tokens].float() * self.model.embedding_scale

    @torch.no_grad()
    def layer(self, number: int, hidden: Tensor) -> Tensor:
        """Return the hidden state after layer `number`, counted from 0."""
        layer = _Layer(self.model, self.read, number)
        hidden = hidden + layer.attention(hidden)
        return hidden + layer.feed_forward(hidden)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits, (batch, length, vocab), for the last layer's hidden state."""
        hidden = norm(hidden, self.read("decoder.final_layernorm.weight", None, None), self.model)
        name = "embedding.word_embeddings.weight" if self.model.tied else "output_layer.weight"
        pieces = [hidden @ rows.float().T for rows in self.read(name, None, None).split(OUTPUT_ROWS)]
        return capped(torch.cat(pieces, dim=-1), self.model.logit_cap)


class _Layer:
    """One layer, whose weights are read when they are used, and not kept."""

    def __init__(self, model: Architecture, read: Read, number: int) -> None:
        self.model = model
        self.read = read
        self.number = number
        self.has_experts = model.has_experts(number)

    def weight(self, name: str, expert: int | None = None) -> Tensor:
        return self.read(f"decoder.layers.*.{name}", self.number, expert).float()

    def norm(self, x: Tensor, name: str) -> Tensor:
        return norm(x, self.weight(name), self.model)

    def attention(self, hidden: Tensor) -> Tensor:
        """Return the values that attention adds to the residual stream."""
        if self.model.norms != "after":
            hidden = self.norm(hidden, BEFORE_LATENT_ATTENTION if self.model.latent else BEFORE_ATTENTION)
        latent = self.model.latent
        queries, keys, values = self.latent_heads(hidden, latent) if latent else self.heads(hidden)
        out = attend(queries, keys, values, self.model, self.model.window(self.number))
        out = out @ self.weight("self_attention.linear_proj.weight").T
        return out if self.model.norms == "before" else self.norm(out, AFTER_ATTENTION)

    def heads(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (batch, length, heads, head size), keys and values (batch, length, KV heads, head size)."""
        model = self.model
        mixed = hidden @ self.weight("self_attention.linear_qkv.weight").T
        if model.qkv_bias:
            mixed = mixed + self.weight("self_attention.linear_qkv.bias")
        # Each group has the rows of a KV head's queries, key and value
        groups = mixed.unflatten(-1, (model.kv_heads, model.heads // model.kv_heads + 2, model.head_dim))
        queries, keys, values = groups[..., :-2, :].flatten(2, 3), groups[..., -2, :], groups[..., -1, :]
        if model.qk_norm != "none":
            queries = self.norm_heads(queries, "self_attention.q_layernorm.weight")
            keys = self.norm_heads(keys, "self_attention.k_layernorm.weight")
        windowed = model.window(self.number) is not None
        rope = model.local_rope if model.local_rope and windowed else model.rope
        return rotate(queries, rope), rotate(keys, rope), values

    def norm_heads(self, x: Tensor, name: str) -> Tensor:
        if self.model.qk_norm == "head":
            return self.norm(x, name)
        return self.norm(x.flatten(2), name).view_as(x)

    def latent_heads(self, hidden: Tensor, latent: Latent) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same as `heads` for latent attention. All heads share the rotary part of the key."""
        model = self.model
        queries = self.latent_queries(hidden, latent).unflatten(-1, (model.heads, -1))
        plain, rotary = queries.split([latent.nope, latent.rope], dim=-1)
        queries = torch.cat([plain, rotate(rotary, model.rope, interleaved=True)], dim=-1)

        narrow = hidden @ self.weight("self_attention.linear_kv_down_proj.weight").T
        narrow, rotary = narrow.split([latent.kv_rank, latent.rope], dim=-1)
        narrow = self.norm(narrow, "self_attention.linear_kv_up_proj.layer_norm_weight")
        wide = narrow @ self.weight("self_attention.linear_kv_up_proj.weight").T
        plain, values = wide.unflatten(-1, (model.heads, -1)).split([latent.nope, latent.value], dim=-1)
        rotary = rotate(rotary.unsqueeze(2), model.rope, interleaved=True).expand(-1, -1, model.heads, -1)
        return queries, torch.cat([plain, rotary], dim=-1), values

    def latent_queries(self, hidden: Tensor, latent: Latent) -> Tensor:
        if latent.q_rank is None:
            return hidden @ self.weight("self_attention.linear_q_proj.weight").T
        narrow = hidden @ self.weight("self_attention.linear_q_down_proj.weight").T
        narrow = self.norm(narrow, "self_attention.linear_q_up_proj.layer_norm_weight")
        return narrow @ self.weight("self_attention.linear_q_up_proj.weight").T

    def feed_forward(self, hidden: Tensor) -> Tensor:
        """Return the values that the feed-forward or the experts add to the residual stream."""
        if self.model.norms != "after":
            hidden = self.norm(hidden, BEFORE_EXPERTS if self.has_experts else BEFORE_DENSE)
        experts = self.model.experts
        out = self.mixture(hidden, experts) if experts and self.has_experts else self.gated(hidden, "mlp")
        return out if self.model.norms == "before" else self.norm(out, AFTER_FEED_FORWARD)

    def gated(self, x: Tensor, name: str, expert: int | None = None) -> Tensor:
        gate, up = (x @ self.weight(f"{name}.linear_fc1.weight", expert).T).chunk(2, dim=-1)
        active = F.silu(gate) if self.model.activation == "silu" else F.gelu(gate, approximate="tanh")
        return (active * up) @ self.weight(f"{name}.linear_fc2.weight", expert).T

    def mixture(self, hidden: Tensor, experts: Experts) -> Tensor:
        tokens = hidden.flatten(0, 1)
        bias = self.weight("mlp.router.expert_bias") if experts.bias else None
        weights, chosen = route(tokens @ self.weight("mlp.router.weight").T, bias, experts)
        out = torch.zeros_like(tokens)
        for expert in chosen.unique().tolist():
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            out[rows] += self.gated(tokens[rows], "mlp.experts.experts", expert) * weights[rows, places, None]
        if experts.shared_ffn:
            out = out + self.gated(tokens, "mlp.shared_experts")
        return out.view_as(hidden)


def norm(x: Tensor, weight: Tensor, model: Architecture) -> Tensor:
    """Apply RMSNorm (Zhang and Sennrich 2019) over the last axis."""
    weight = weight.float() + 1 if model.unit_norms else weight.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + model.norm_eps) * weight


def capped(x: Tensor, cap: float | None) -> Tensor:
    """Soft-cap to (-cap, cap) (Gemma 2)."""
    return x if cap is None else cap * torch.tanh(x / cap)


def attend(queries: Tensor, keys: Tensor, values: Tensor, model: Architecture, window: int | None) -> Tensor:
    """Compute causal attention on the result of `heads`. Return (batch, length, heads x value size)."""
    scale = model.head_dim**-0.5 if model.attention_scale is None else model.attention_scale
    groups = queries.unflatten(2, (keys.size(2), -1))
    scores = capped(torch.einsum("bqghd,bkgd->bghqk", groups, keys) * scale, model.attention_cap)
    distance = torch.arange(queries.size(1))[:, None] - torch.arange(keys.size(1))  # from query back to key
    masked = distance < 0 if window is None else (distance < 0) | (distance >= window)
    weights = scores.masked_fill(masked, float("-inf")).softmax(dim=-1)
    return torch.einsum("bghqk,bkgd->bqghd", weights, values).flatten(2)


def route(scores: Tensor, bias: Tensor | None, experts: Experts) -> tuple[Tensor, Tensor]:
    """Return the weights and indices of each token's experts, each (tokens, top_k), from the router's output.

    A softmax over all experts that is normalized over the chosen ones equals the softmax over the chosen ones.
    """
    scores = scores.softmax(dim=-1) if experts.scores == "softmax" else scores.sigmoid()
    choice = scores if bias is None else scores + bias
    if experts.top_groups < experts.groups:
        choice = choice.masked_fill(~_in_best_groups(choice, experts), float("-inf"))
    chosen = choice.topk(experts.top_k, dim=-1).indices
    weights = scores.gather(1, chosen)
    if experts.normalized:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights * experts.scale, chosen


def _in_best_groups(choice: Tensor, experts: Experts) -> Tensor:
    """Return whether an expert is in one of its token's best groups. A group's score is the sum of its best
    top_k // top_groups experts' scores (DeepSeek-V3, section 2.1.2)."""
    groups = choice.unflatten(-1, (experts.groups, -1))
    score = groups.topk(experts.top_k // experts.top_groups, dim=-1).values.sum(dim=-1)
    best = torch.zeros_like(score, dtype=torch.bool).scatter(1, score.topk(experts.top_groups, dim=-1).indices, True)
    return best.unsqueeze(-1).expand_as(groups).flatten(1)
