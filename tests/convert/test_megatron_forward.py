"""The two sides of the audit: the plain forward pass over Megatron's layout, and transformers layer by layer.

The plain pass is compared with transformers for every family, and with Megatron-Core's own model for the families that
Baton trains, so that it does not repeat a misreading of either.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from transformers import AutoModelForCausalLM

from baton.tasks.convert.architecture import Architecture, Experts, Latent, Rope
from baton.tasks.convert.hf_forward import Reference
from baton.tasks.convert.megatron_forward import Decoder
from baton.tasks.core.job import StageError
from baton.tasks.models.model_spec import ExpertsSpec, ModelSpec
from baton.tasks.pretrain import megatron
from tests.convert.models import FAMILIES, LENGTH, VOCABULARY, WINDOW, architecture, make, megatron_weights, text

# isort: split
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import MLATransformerConfig

from baton.tasks.pretrain.initialization import shards
from baton.tasks.pretrain.model import RMSNorm, build_model, transformer_config

# Bound for logits with a standard deviation of 1. The measured differences are at most 2.7e-6 for transformers and
# 4.7e-6 for Megatron-Core, which is fp32 rounding in another order. The slightly wrong models below differ by at least
# 4.7e-4.
BOUND = 2e-5

Key = tuple[str, int | None, int | None]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    yield
    torch.set_num_threads(before)


@torch.no_grad()
def whole(folder: Path, tokens: Tensor) -> Tensor:
    """Return the logits of the complete Hugging Face model."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    logits: Tensor = model.eval()(tokens, use_cache=False).logits
    return logits


def through(side: Decoder | Reference, layers: int, tokens: Tensor) -> Tensor:
    hidden = side.embed(tokens)
    for number in range(layers):
        hidden = side.layer(number, hidden)
    return side.logits(hidden)


def decoded(model: Architecture, weights: dict[Key, Tensor], tokens: Tensor, strict: bool = True) -> Tensor:
    """Return the logits of the Decoder. With `strict`, every weight must have been used."""
    used = set()

    def read(name: str, layer: int | None, expert: int | None) -> Tensor:
        used.add((name, layer, expert))
        return weights[name, layer, expert]

    logits = through(Decoder(model, read), model.layers, tokens)
    assert not strict or used == weights.keys()
    return logits


def apart(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max())


# Hugging Face


@pytest.mark.parametrize("name", FAMILIES)
def test_the_plain_forward_is_transformers_own(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path)
    assert apart(decoded(architecture(folder), megatron_weights(folder), text()), whole(folder, text())) < BOUND


def test_weights_may_be_in_a_narrower_format(tmp_path: Path) -> None:
    folder = make("qwen3_moe", tmp_path, torch.bfloat16)
    weights = megatron_weights(folder)
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert apart(decoded(architecture(folder), weights, text()), whole(folder, text())) < BOUND


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("llama", "norm_eps", 2e-6),
        ("llama-llama3", "rope", {"factor": 7.9}),
        ("llama-llama3", "rope", {"high_freq_factor": 3.9}),
        ("llama-llama3", "rope", {"original_max_position_embeddings": 33}),
        ("llama-linear", "rope", {"factor": 2.49}),
        ("llama-yarn", "rope", {"truncate": False}),
        ("llama-yarn", "rope", {"attention_factor": 1.24}),
        ("mistral-window", "windows", (WINDOW, WINDOW + 1, WINDOW)),
        ("qwen3_moe", "experts", {"normalized": False}),
        ("gemma2", "attention_cap", 5.1),
        ("gemma2", "logit_cap", 9.1),
        ("gemma2", "attention_scale", 0.224),
        ("gemma2", "embedding_scale", 8.5),
        ("gemma3", "local_rope", {"theta": 1.01e4}),
        ("deepseek_v3", "experts", {"scale": 2.51}),
        ("deepseek_v3", "experts", {"top_groups": 3}),
    ],
)
def test_a_slightly_wrong_model_shows(name: str, field: str, value: Any, tmp_path: Path) -> None:
    """The bound is meaningful, since the tiny models are sensitive to the tested features."""
    folder = make(name, tmp_path)
    model, weights = architecture(folder), megatron_weights(folder)
    wrong = replace(getattr(model, field), **value) if isinstance(value, dict) else value
    changed = decoded(replace(model, **{field: wrong}), weights, text(), strict=False)
    assert apart(decoded(model, weights, text()), changed) > 10 * BOUND


@pytest.mark.parametrize("name", FAMILIES)
def test_layer_by_layer_is_the_whole_model(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path, torch.bfloat16)
    reference = Reference(folder)
    logits = through(reference, reference.config.num_hidden_layers, text())
    assert torch.equal(logits, whole(folder, text()))  # the same modules in the same order


def test_layer_by_layer_reads_a_model_in_many_files(tmp_path: Path) -> None:
    folder = make("mixtral", tmp_path / "one")
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "many", max_shard_size="100KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    assert torch.equal(through(Reference(tmp_path / "many"), 3, text()), whole(folder, text()))


def lose(weights: dict[str, Tensor], name: str) -> None:
    del weights[name]


def add(weights: dict[str, Tensor], name: str) -> None:
    weights[name] = torch.zeros(3)


def shorten(weights: dict[str, Tensor], name: str) -> None:
    weights[name] = weights[name][1:].clone()


@pytest.mark.parametrize(
    ("model", "change", "name", "named"),
    [
        ("llama", lose, "self_attn.q_proj.weight", "self_attn.q_proj.weight"),
        ("llama", add, "self_attn.q_proj.bias", "self_attn.q_proj.bias"),
        ("llama", shorten, "mlp.up_proj.weight", "mlp.up_proj.weight"),
        ("qwen3_moe", lose, "mlp.experts.4.down_proj.weight", "mlp.experts.down_proj"),
        ("qwen3_moe", lose, "mlp.experts.4.up_proj.weight", "conversion of the weights"),
    ],
)
def test_a_layer_that_is_not_its_config_s_is_refused(
    model: str, change: Callable[[dict[str, Tensor], str], None], name: str, named: str, tmp_path: Path
) -> None:
    folder = make(model, tmp_path)
    weights = load_file(folder / "model.safetensors")
    change(weights, f"model.layers.1.{name}")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    reference = Reference(folder)
    with pytest.raises(StageError, match=f"layer 1 .*{named}"):
        reference.layer(1, reference.embed(text()))


# Megatron-Core

COMMON = ModelSpec(
    family="llama", layers=3, hidden=72, heads=6, kv_heads=3, head_dim=16, ffn_hidden=136, max_positions=64
)
EXPERTS = ExpertsSpec(count=5, top_k=2, ffn_hidden=28)

TRAINED = {
    "llama": COMMON,
    "llama-untied": COMMON.model_copy(update={"tied_embeddings": False}),
    "llama-llama3": COMMON.model_copy(update={"rope_scaling_factor": 8.0}),
    "mistral": COMMON.model_copy(update={"family": "mistral", "sliding_window": WINDOW}),
    "qwen2": COMMON.model_copy(update={"family": "qwen2"}),
    "qwen3": COMMON.model_copy(update={"family": "qwen3"}),
    "qwen3_moe": COMMON.model_copy(update={"family": "qwen3_moe", "experts": EXPERTS}),
    "qwen3_moe-unnormalized": COMMON.model_copy(
        update={"family": "qwen3_moe", "experts": EXPERTS.model_copy(update={"normalize_top_k": False})}
    ),
    "mixtral": COMMON.model_copy(update={"family": "mixtral", "experts": EXPERTS}),
    "mixtral-shared": COMMON.model_copy(
        update={
            "family": "mixtral",
            "sliding_window": WINDOW,
            "experts": EXPERTS.model_copy(update={"shared_ffn_hidden": 20}),
        }
    ),
}


def architecture_of(spec: ModelSpec) -> Architecture:
    """Convert Baton's ModelSpec to the converter's Architecture."""
    rope = Rope(spec.rope_theta)
    if spec.rope_scaling_factor:
        rope = Rope(spec.rope_theta, "llama3", spec.rope_scaling_factor, original_max_position_embeddings=8192)
    experts = None
    if spec.experts:
        experts = Experts(
            count=spec.experts.count,
            top_k=spec.experts.top_k,
            ffn=spec.experts.ffn_hidden,
            shared_ffn=spec.experts.shared_ffn_hidden,
            normalized=spec.experts.normalize_top_k,
        )
    return Architecture(
        vocab=VOCABULARY,
        layers=spec.layers,
        hidden=spec.hidden,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        ffn=spec.ffn_hidden,
        max_positions=spec.max_positions,
        norm_eps=spec.norm_eps,
        tied=spec.tied_embeddings,
        rope=rope,
        windows=(spec.sliding_window,) * spec.layers,
        qkv_bias=spec.shape().qkv_bias,
        qk_norm="head" if spec.shape().qk_norm else "none",
        experts=experts,
    )


def build(spec: ModelSpec) -> GPTModel:
    """Build Megatron-Core's model as Baton does, with random weights, norms and biases."""
    one_process()
    return randomized(build_model(spec, transformer_config(spec, "fp32"), VOCABULARY))


def one_process() -> None:
    if not dist.is_initialized():  # Megatron requires process groups even for a single process
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(0)


def randomized(model: GPTModel) -> GPTModel:
    generator = torch.Generator().manual_seed(0)
    biases = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("expert_bias")]
    for name, weight in [*model.named_parameters(), *biases]:
        around = 1.0 if name.endswith("norm.weight") else 0.0
        spread = 0.1 if weight.ndim == 1 else weight.size(-1) ** -0.5
        weight.data.copy_(around + torch.randn(weight.shape, generator=generator) * spread)
    return model.eval()


def in_checkpoint(model: GPTModel) -> dict[Key, Tensor]:
    """Return the weights of a Megatron model by their names in a checkpoint, with both halves of a gated feed-forward
    joined."""
    found: dict[Key, Tensor] = {}
    for shard in shards(model):
        leading = shard.prepend_axis_num
        place: list[int] = list(shard.global_offset[:leading])
        name = re.fullmatch(r"(decoder\.layers\.)(?:(\d+)\.)?(.*)", shard.key)
        key = shard.key
        if name:
            key = f"{name[1]}*.{name[3]}"
            place = [int(name[2]), *place] if name[2] else place  # layers that differ from each other are not stacked
        layer, expert = (*place, None, None)[:2]
        weight = found.setdefault((key, layer, expert), torch.full(shard.global_shape[leading:], torch.nan))
        offset = shard.global_offset[leading:]
        part = tuple(slice(start, start + size) for start, size in zip(offset, shard.local_shape, strict=True))
        weight[part] = shard.data
    return found


@pytest.mark.parametrize("name", TRAINED)
def test_the_plain_forward_is_megatron_core_s_own(name: str) -> None:
    spec = TRAINED[name]
    model = build(spec)
    assert apart(decoded(architecture_of(spec), in_checkpoint(model), text()), logits_of(model)) < BOUND


@torch.no_grad()
def logits_of(model: GPTModel) -> Tensor:
    positions = torch.arange(LENGTH).expand(2, -1).contiguous()
    logits: Tensor = model(text().to(megatron.DEVICE), positions.to(megatron.DEVICE), None)
    return logits.cpu()


# Megatron-Core's latent attention, which Baton does not train

LATENT = Architecture(
    vocab=VOCABULARY,
    layers=2,
    hidden=72,
    heads=6,
    kv_heads=6,
    head_dim=16,
    ffn=136,
    max_positions=64,
    norm_eps=1e-6,
    tied=False,
    rope=Rope(10000.0),
    latent=Latent(q_rank=40, kv_rank=24, nope=10, rope=6, value=14),
    experts=Experts(12, 4, 28, 56, "sigmoid", bias=True, groups=4, top_groups=2, scale=2.5, first=1),
)
WIDE_QUERIES = replace(LATENT, latent=Latent(q_rank=None, kv_rank=24, nope=10, rope=6, value=14))


def mscale(weight: float) -> float:
    """Return the factor of YaRN's section 3.4 with DeepSeek's weight, for a scale of 4."""
    return 0.1 * weight * math.log(4) + 1


YARN: dict[str, Any] = {
    "rope": Rope(10000.0, "yarn", 4.0, 32, beta_fast=8.0, beta_slow=0.5, attention_factor=mscale(1.0) / mscale(0.7)),
    "attention_scale": 16**-0.5 * mscale(0.7) ** 2,
}

# The tables have the names of the layers with Transformer Engine, which is not installed here
WITHOUT_ENGINE = {
    "self_attention.linear_q_up_proj.layer_norm_weight": "self_attention.q_layernorm.weight",
    "self_attention.linear_kv_up_proj.layer_norm_weight": "self_attention.kv_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight",
}


class Attention(torch.nn.Module):
    """A replacement for Transformer Engine's attention, which supports values of another size than keys."""

    def __init__(self, *unused: object, softmax_scale: float, **also_unused: object) -> None:
        super().__init__()
        self.scale = softmax_scale

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *unused: object, **also_unused: object) -> Tensor:
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        return out.permute(2, 0, 1, 3).flatten(2)


def build_latent(model: Architecture) -> GPTModel:
    """Build DeepSeek-V3 in Megatron-Core."""
    latent, experts, rope = model.latent, model.experts, model.rope
    assert latent and experts
    config = MLATransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden,
        num_attention_heads=model.heads,
        ffn_hidden_size=model.ffn,
        layernorm_epsilon=model.norm_eps,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        qk_layernorm=True,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        q_lora_rank=latent.q_rank,
        kv_lora_rank=latent.kv_rank,
        qk_head_dim=latent.nope,
        qk_pos_emb_head_dim=latent.rope,
        v_head_dim=latent.value,
        rope_type="yarn" if rope.scaling == "yarn" else "rope",
        rotary_base=rope.theta,
        rotary_scaling_factor=rope.factor,
        original_max_position_embeddings=rope.original_max_position_embeddings,
        beta_fast=rope.beta_fast,
        beta_slow=rope.beta_slow,
        mscale=1.0,
        mscale_all_dim=0.7,  # no effect with factor 1
        num_moe_experts=experts.count,
        moe_layer_freq=[int(model.has_experts(layer)) for layer in range(model.layers)],
        moe_router_topk=experts.top_k,
        moe_ffn_hidden_size=experts.ffn,
        moe_shared_expert_intermediate_size=experts.shared_ffn,
        moe_router_score_function=experts.scores,
        moe_router_enable_expert_bias=experts.bias,
        moe_router_num_groups=experts.groups,
        moe_router_group_topk=experts.top_groups,
        moe_router_topk_scaling_factor=experts.scale,
        moe_router_load_balancing_type="none",
        moe_router_dtype="fp32",
        moe_token_dispatcher_type="alltoall",
    )
    layers = []
    for number in range(model.layers):
        count = experts.count if model.has_experts(number) else None
        layer = get_gpt_layer_local_spec(count, qk_layernorm=True, multi_latent_attention=True)
        parts, attention = layer.submodules, layer.submodules.self_attention.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
        attention.q_layernorm = attention.kv_layernorm = RMSNorm
        attention.core_attention = Attention
        layers.append(layer)
    one_process()
    return GPTModel(
        config,
        TransformerBlockSubmodules(layers, layer_norm=RMSNorm),
        vocab_size=model.vocab,
        max_sequence_length=model.max_positions,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=model.tied,
    ).to(megatron.DEVICE)


def with_engine(key: Key) -> Key:
    """Return the name that a weight has in the layers with Transformer Engine; the last layer has experts."""
    name, layer, expert = key
    for engine, local in WITHOUT_ENGINE.items():
        if name.endswith(local) and not (local.startswith("pre_mlp") and layer == 1):
            name = name.replace(local, engine)
    return name, layer, expert


@pytest.mark.parametrize("more", [{}, YARN], ids=["plain", "yarn"])
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(LATENT, id="narrow-queries"),
        pytest.param(
            WIDE_QUERIES,
            id="wide-queries",
            marks=pytest.mark.skipif(
                find_spec("megatron.core.transformer.mla_qk_norm_config") is not None,
                reason="this Megatron-Core has a norm before the projection of wide queries; DeepSeek's has none",
            ),
        ),
    ],
)
def test_latent_attention_is_megatron_core_s_own(
    model: Architecture, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_latent_attention, "TELinear", torch.nn.Bilinear)  # None otherwise, which is no type
    model = replace(model, **more)
    theirs = randomized(build_latent(model))
    weights = {with_engine(key): weight for key, weight in in_checkpoint(theirs).items()}
    assert apart(decoded(model, weights, text()), logits_of(theirs)) < BOUND
