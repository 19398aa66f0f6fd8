"""Build Megatron-Core's GPTModel from a ModelSpec, parallelized by a Layout."""

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.pretrain.attention import SDPAttention
from baton.tasks.pretrain.cpu_ops import rms_norm, swiglu
from baton.tasks.pretrain.initialization import initialize
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.megatron import CUDA, DEVICE
from baton.tasks.pretrain.megatron_hooks import FusedLossGPTModel, submodules

# isort: split
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm with the constructor that Megatron calls. Unlike Megatron's wrapper, it marks its weight for
    sequence parallelism, where each rank normalizes a part of the sequence and finalize_model_grads sums the
    gradients."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **unused: object) -> None:
        super().__init__(hidden_size, eps)
        self.epsilon = eps
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if CUDA else rms_norm(x, self.weight, self.epsilon)


class SwiGLU(MegatronModule):
    """cpu_ops.swiglu as a module, used in place of Transformer Engine's activation."""

    def forward(self, gate_and_up: Tensor) -> Tensor:
        return swiglu(gate_and_up)


def transformer_config(spec: ModelSpec, precision: str, layout: Layout | None = None) -> TransformerConfig:
    """Return Megatron's configuration. Without a layout, it is for one process."""
    layout = layout or Layout()
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    return TransformerConfig(
        num_layers=spec.layers,
        hidden_size=spec.hidden,
        num_attention_heads=spec.heads,
        num_query_groups=spec.kv_heads,
        kv_channels=spec.head_dim,
        ffn_hidden_size=spec.ffn_hidden,
        normalization="RMSNorm",
        layernorm_epsilon=spec.norm_eps,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=spec.shape().qkv_bias,
        qk_layernorm=spec.shape().qk_norm,
        window_size=(spec.sliding_window - 1, 0) if spec.sliding_window else None,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=precision != "fp32",
        fp8="hybrid" if precision == "fp8" else None,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        # initialization.py overwrites the weights, but Megatron's initialization also marks those that are
        # split over tensor parallel ranks; without the marks, the gradient norm would miss parts of them
        perform_initialization=True,
        use_cpu_initialization=not CUDA,
        # The fusions are jit-compiled for CUDA; on a CPU they are slower, and cpu_ops replaces Transformer Engine's
        # operations
        bias_activation_fusion=CUDA,
        use_te_activation_func=not CUDA,
        apply_rope_fusion=not CUDA,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual_pipeline if layout.virtual_pipeline > 1 else None,
        # An interleaved pipeline with two stages sends activations and gradients between the same two ranks at the
        # same time; in one batch they would silently be mistaken for each other.
        batch_p2p_comm=layout.virtual_pipeline == 1,
        overlap_p2p_comm=layout.virtual_pipeline > 1,
        context_parallel_size=layout.context,
        sequence_parallel=layout.sequence_parallel,
        **_RECOMPUTE[layout.recompute],
        **_experts(spec, layout),
    )


_RECOMPUTE: dict[str, dict[str, object]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def _experts(spec: ModelSpec, layout: Layout) -> dict[str, object]:
    if spec.experts is None:
        return {}
    return {
        "num_moe_experts": spec.experts.count,
        "moe_router_topk": spec.experts.top_k,
        "moe_ffn_hidden_size": spec.experts.ffn_hidden,
        "moe_shared_expert_intermediate_size": spec.experts.shared_ffn_hidden or None,
        # Softmax over the chosen experts, or over all experts
        "moe_router_pre_softmax": not spec.experts.normalize_top_k,
        # Per sequence, since a batch's loss must not depend on how it is split into micro batches
        "moe_router_load_balancing_type": "seq_aux_loss" if spec.experts.aux_loss else "none",
        "moe_aux_loss_coeff": spec.experts.aux_loss,
        "moe_z_loss_coeff": spec.experts.z_loss or None,
        "moe_router_dtype": "fp32",
        # In this case, all-to-all would gather parts of different sizes from tensor parallel ranks, which gloo lacks
        "moe_token_dispatcher_type": "allgather"
        if layout.expert > 1 and layout.expert_tensor > 1 and not CUDA
        else "alltoall",
        "expert_model_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.expert_tensor,
    }


def block_spec(config: TransformerConfig, chunk: int | None) -> TransformerBlockSubmodules | ModuleSpec:
    """Return the layers' modules: those of Transformer Engine for fp8, otherwise Megatron's local modules with torch's
    attention and norm."""
    if config.fp8:
        return get_gpt_layer_with_transformer_engine_spec(config.num_moe_experts, qk_layernorm=config.qk_layernorm)
    layer = get_gpt_layer_local_spec(config.num_moe_experts, qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    parts, attention = layer.submodules, layer.submodules.self_attention.submodules
    attention.core_attention = SDPAttention
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    if config.num_moe_experts:
        # Before experts the norm is a separate module, also in checkpoints and with Transformer Engine
        parts.sharded_state_dict_keys_map = {
            name: key for name, key in parts.sharded_state_dict_keys_map.items() if name != "pre_mlp_layernorm."
        }
    if not CUDA:
        feed_forward = submodules(parts.mlp)
        dense = [feed_forward.experts, feed_forward.shared_experts] if config.num_moe_experts else [parts.mlp]
        for module in dense:
            submodules(module).activation_func = SwiGLU
    if config.qk_layernorm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return TransformerBlockSubmodules([layer] * get_num_layers_to_build(config, chunk), layer_norm=RMSNorm)


def build_model(
    spec: ModelSpec,
    config: TransformerConfig,
    vocab_size: int,
    seed: int = 0,
    first: bool = True,
    last: bool = True,
    chunk: int | None = None,
) -> GPTModel:
    """Build a newly initialized model on the CPU or this process's GPU. With a pipeline, this is the rank's stage,
    which is the `first` or `last` or neither; with an interleaved one, the rank's `chunk`-th part."""
    model = FusedLossGPTModel(
        config,
        block_spec(config, chunk),
        vocab_size=vocab_size,
        max_sequence_length=spec.max_positions,
        pre_process=first,
        post_process=last,
        position_embedding_type="rope",
        rotary_base=spec.rope_theta,
        rope_scaling=spec.rope_scaling_factor is not None,
        rope_scaling_factor=spec.rope_scaling_factor or 1.0,
        share_embeddings_and_output_weights=spec.tied_embeddings,
        vp_stage=chunk,
    ).to(DEVICE)
    initialize(model, spec, seed)
    return model


def build_chunks(spec: ModelSpec, config: TransformerConfig, vocab_size: int, seed: int) -> list[GPTModel]:
    """Build this rank's part of the model: one chunk, or several with an interleaved pipeline."""
    chunks: list[int | None] = [None]
    if config.virtual_pipeline_model_parallel_size:
        chunks = list(range(config.virtual_pipeline_model_parallel_size))
    return [
        build_model(
            spec,
            config,
            vocab_size,
            seed,
            first=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
            last=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk),
            chunk=chunk,
        )
        for chunk in chunks
    ]
