"""Estimate the memory of each process of a post-training stage with TRL and Transformers.

Weights, gradients and AdamW's two moments are in fp32, and autocast copies the weights to bf16. A reference model is in
fp32 too, and a vLLM engine that stays open is added (the method's `step_cost`). With an adapter the model is frozen in
bf16, or its linear layers in 4 bits, and is also the reference; only the adapter has gradients and moments. Activations
are the tensors that autograd saves in Transformers' decoder layers in eager mode (modeling_qwen3.py of 5.17; compared
with measurements in tests/posttrain/test_memory.py), for rows of the maximum length. DDP adds buckets as large as the
gradients. FSDP2 divides weights, gradients, optimizer and reference by the processes, and gathers two layers and the
embedding at a time; with CPU offload the parts are in the host's memory. With gradient checkpointing, the default on a
GPU, only each layer's input is saved. Logits are computed in tiles (trl/kernels/chunked_logprob.py of 1.16). CUDA's
context and fragmentation are not counted, as in tasks/pretrain/memory.py.
"""

from dataclasses import dataclass

from baton.infra.text import gigabytes
from baton.tasks.hardware.memory import GPU, Kernels, Memory
from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.posttrain.adapter_spec import linear_layers
from baton.tasks.posttrain.spec import PostTrainSpec
from baton.tasks.vllm.memory import kv_cache_bytes

FP32, BF16 = 4, 2  # bytes
# Bytes per weight in NF4 with double quantization: 4 bits, an 8-bit scale per 64 weights, and an fp32 scale per 256 of
# those scales
NF4 = 1 / 2 + 1 / 64 + FP32 / (64 * 256)
TILE_TOKENS, TILE_WORDS = 4096, 32_768  # tile of TRL's logits
CPU_CACHE = 2**30  # vLLM's KV cache on CPU, bytes (tasks/vllm/engine.py)


@dataclass(frozen=True)
class TuningMemory(Memory):
    """Bytes that a process uses on its device. `activations` are those of one forward and backward pass, including the
    bf16 weights."""

    reference: int = 0
    vllm: int = 0  # vLLM's share while training

    @property
    def total(self) -> int:
        return super().total + self.reference + self.vllm

    def breakdown(self) -> str:
        more = {"reference model": self.reference, "vLLM": self.vllm, "offloaded to the host": self.host}
        return ", ".join([super().breakdown(), *(f"{name} {gigabytes(size)}" for name, size in more.items() if size)])


def estimate(
    spec: PostTrainSpec,
    model: ModelSpec,
    vocabulary: int,
    positions: int,
    kernels: Kernels = GPU,
    capacity: float | None = None,
) -> TuningMemory:
    """Estimate the memory. `vocabulary`: the embedding's rows; `positions`: those of the model; `capacity`: bytes of
    the GPU. If `capacity` is None, vLLM is counted with its weights and the KV cache of one sequence."""
    cost = spec.step_cost()
    weights = model.parameters(vocabulary)
    trained = spec.adapter.lora.parameters(model) if spec.adapter else weights
    frozen = _frozen(spec, model, weights)
    parts = spec.layout.world if spec.layout.sharding == "fsdp2" else 1
    buckets = 2 if spec.layout.sharding == "ddp" else 1
    vllm = 0
    if cost.vllm_share is not None:
        share = int(cost.vllm_share * capacity) if capacity else 0
        cache = kv_cache_bytes(model.layers, model.kv_heads, model.head_dim, spec.limits(positions).total)
        vllm = max(BF16 * weights + cache, share) if kernels == GPU else BF16 * weights + max(cache, CPU_CACHE)
    memory = TuningMemory(
        weights=(FP32 * trained + frozen) // parts,
        gradients=buckets * FP32 * trained // parts,
        optimizer=2 * FP32 * trained // parts,
        activations=_activations(spec, model, vocabulary, positions, kernels == GPU),
        reference=0 if spec.adapter else FP32 * weights * cost.reference // parts,
        vllm=vllm,
    )
    if not (spec.layout.cpu_offload and kernels == GPU):
        return memory
    return TuningMemory(0, 0, 0, memory.activations, vllm=vllm, host=memory.total - memory.activations - vllm)


def _frozen(spec: PostTrainSpec, model: ModelSpec, weights: int) -> int:
    """Return the bytes of the frozen model under an adapter, assuming that models are stored in bf16."""
    if spec.adapter is None:
        return 0
    each = BF16 if spec.precision == "bf16" else FP32
    if spec.adapter.quantize is None:
        return each * weights
    linear = model.layers * sum(rows * columns for rows, columns in linear_layers(model).values())
    return int(NF4 * linear) + each * (weights - linear)


def _activations(spec: PostTrainSpec, model: ModelSpec, vocabulary: int, positions: int, gpu: bool) -> int:
    """Return the larger of the bytes at the end of the forward pass and at the beginning of the backward pass."""
    limits, cost = spec.limits(positions), spec.step_cost()
    tokens = spec.micro_batch() * cost.sequences * limits.total
    learned = spec.micro_batch() * cost.sequences * (limits.new if cost.completions_alone else limits.total)
    trained = spec.adapter.lora.parameters(model) if spec.adapter else model.parameters(vocabulary)
    weights = trained if spec.precision == "bf16" else 0  # weights that autocast copies
    trains_head = spec.adapter is None
    layer = tokens * _bytes_per_token(model, limits.total)
    sharded = spec.layout.sharding == "fsdp2"
    if sharded:  # the weights that are gathered at a time, in bf16
        weights = 2 * model.parameters(vocabulary) // model.layers + vocabulary * model.hidden
    copies = BF16 * weights  # autocast caches them during the forward pass, and autograd saves them
    if spec.adapter and spec.adapter.quantize:  # one weight at a time, multiplied in bf16 or fp32
        largest = max(rows * columns for rows, columns in linear_layers(model).values())
        copies += (BF16 if spec.precision == "bf16" else FP32) * largest
    softmax = 0 if gpu else 8 * FP32  # intermediate results of torch's unfused softmax
    head = _head(learned, vocabulary, model.hidden, softmax, trains_head)
    if not spec.layout.recomputes(gpu):
        return model.layers * layer + copies + BF16 * weights * cost.reference_in_step + head
    saved = model.layers * tokens * FP32 * model.hidden
    accumulates = spec.batch_size > spec.micro_batch() * spec.layout.world
    forward = copies - (0 if accumulates or sharded else FP32 * trained)  # without gradients, which don't exist yet
    work = layer + (copies if sharded else BF16 * weights // model.layers)  # recomputation of a layer
    return saved + max(0, forward, work, head)


def _bytes_per_token(model: ModelSpec, length: int) -> int:
    """Return the bytes that autograd saves per token and layer."""
    hidden, queries, keys = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    feed_forward = model.ffn_hidden
    if model.experts:
        feed_forward = model.experts.top_k * model.experts.ffn_hidden + model.experts.shared_ffn_hidden
    norms = 4 * FP32 * hidden  # two norms, each with the residual stream and its normalized value
    inputs = 5 * BF16 * hidden  # a copy each for queries, keys, values, gate and up
    attention = 4 * BF16 * queries + BF16 * length  # queries, repeated keys and values, the output, and the mask
    if model.shape().qk_norm:
        attention += (FP32 + BF16) * (queries + keys)
    return norms + inputs + attention + 4 * BF16 * feed_forward


def _head(tokens: int, vocabulary: int, hidden: int, extra: int, trained: bool) -> int:
    """Return the bytes of one tile of TRL's logits (bf16, of full width even for a small vocabulary; `extra`: further
    bytes per logit), and of the projection's gradients."""
    tile = min(tokens, TILE_TOKENS) * (BF16 * TILE_WORDS + extra * min(vocabulary, TILE_WORDS))
    return tile + FP32 * vocabulary * hidden * trained + 2 * FP32 * tokens * hidden
