"""How much memory a post-training process needs: what TRL and Transformers hold, in one process.

Weights, gradients and AdamW's two moments are in fp32, and the model is used in bf16 (autocast), which copies the
weights; DPO and GRPO with a KL have a reference model in fp32 beside them; GRPO has its vLLM engine. Activations are
those of Transformers' decoder layers in eager mode (modeling_qwen3.py of 5.17: what autograd saves, counted there and
held against measurements in tests/posttrain/test_memory.py), of rows as long as they may be. On a GPU only each layer's
input is kept (gradient checkpointing). The logits are TRL's, made in tiles (trl/kernels/chunked_logprob.py of 1.16).
Not counted, as in tasks/pretrain/memory.py: CUDA's context and the allocator's gaps.
"""

from dataclasses import dataclass

from tasks.posttrain.spec import PostTrainSpec
from tasks.pretrain.memory import GB, GPU, Kernels, Memory
from tasks.pretrain.model_spec import ModelSpec

FP32, BF16 = 4, 2  # bytes
TILE_TOKENS, TILE_WORDS = 4096, 32_768  # of TRL's logits at a time
CPU_CACHE = 2**30  # of vLLM's KV cache where there is no GPU (tasks/serve/engine.py)


@dataclass(frozen=True)
class TuningMemory(Memory):
    """Bytes of the process. `activations`: those of one forward and backward pass, and the weights in bf16."""

    reference: int = 0
    vllm: int = 0  # beside the training

    @property
    def total(self) -> int:
        return super().total + self.reference + self.vllm

    def words(self) -> str:
        more = {"reference model": self.reference, "vLLM": self.vllm}
        return ", ".join([super().words(), *(f"{name} {size / GB:.3g} GB" for name, size in more.items() if size)])


@dataclass(frozen=True)
class Held:
    """What the kind of stage adds to an optimizer's step."""

    rows: int = 1  # sequences of each example
    completions_alone: bool = False  # have a loss, and so logits
    reference: bool = False  # a second model
    reference_in_step: bool = False  # it runs between the forward and the backward pass
    vllm_share: float | None = None  # of a GPU, beside the training; None: no engine


def estimate(
    spec: PostTrainSpec,
    held: Held,
    model: ModelSpec,
    vocabulary: int,
    positions: int,
    kernels: Kernels = GPU,
    capacity: float | None = None,
) -> TuningMemory:
    """`vocabulary`: rows of the embedding; `positions`: the model's; `capacity`: of the GPU, in bytes. None: not
    known, and then vLLM's part is its weights."""
    weights = model.parameters(vocabulary)
    vllm = 0
    if held.vllm_share is not None:
        beside = int(held.vllm_share * capacity) if capacity else 0
        vllm = max(BF16 * weights, beside) if kernels == GPU else BF16 * weights + CPU_CACHE
    return TuningMemory(
        weights=FP32 * weights,
        gradients=FP32 * weights,
        optimizer=2 * FP32 * weights,
        activations=_activations(spec, held, model, vocabulary, positions, kernels == GPU),
        reference=FP32 * weights * held.reference,
        vllm=vllm,
    )


def _activations(
    spec: PostTrainSpec, held: Held, model: ModelSpec, vocabulary: int, positions: int, checkpointing: bool
) -> int:
    """The larger of two moments: the end of the forward pass, and the beginning of the backward pass."""
    limits = spec.limits(positions)
    tokens = spec.micro_batch_size * held.rows * limits.total
    learned = spec.micro_batch_size * held.rows * (limits.new if held.completions_alone else limits.total)
    weights = model.parameters(vocabulary)
    layer = tokens * _of_a_token(model, limits.total)
    copies = BF16 * weights  # autocast keeps them as long as the forward pass, and autograd what it has saved
    if not checkpointing:
        copies += BF16 * weights * held.reference_in_step
        head = _head(learned, vocabulary, model.hidden, 8 * FP32)  # torch's softmax, step by step
        return model.layers * layer + copies + head
    kept = model.layers * tokens * FP32 * model.hidden
    accumulates = spec.batch_size > spec.micro_batch_size
    forward = copies - (0 if accumulates else FP32 * weights)  # the gradients, which are not there yet
    work = layer + BF16 * weights // model.layers  # a layer that is computed again
    return kept + max(0, forward, work, _head(learned, vocabulary, model.hidden, 0))


def _of_a_token(model: ModelSpec, length: int) -> int:
    """What autograd saves of a token in a layer: bytes."""
    hidden, queries, keys = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    feed_forward = model.ffn_hidden
    if model.experts:
        feed_forward = model.experts.top_k * model.experts.ffn_hidden + model.experts.shared_ffn_hidden
    norms = 4 * FP32 * hidden  # two norms: the residual stream, and it normed
    inputs = 5 * BF16 * hidden  # of queries, keys, values, gate and up: a copy for each
    attention = 4 * BF16 * queries + BF16 * length  # queries, keys and values of as many heads, the result; the mask
    if model.shape().qk_norm:
        attention += (FP32 + BF16) * (queries + keys)
    return norms + inputs + attention + 4 * BF16 * feed_forward


def _head(tokens: int, vocabulary: int, hidden: int, of_a_logit: int) -> int:
    """TRL's logits, of which a tile is there at a time (bf16, as wide for a small vocabulary; `of_a_logit`: bytes
    beside that), and the gradients of the projection."""
    tile = min(tokens, TILE_TOKENS) * (BF16 * TILE_WORDS + of_a_logit * min(vocabulary, TILE_WORDS))
    return tile + FP32 * vocabulary * hidden + 2 * FP32 * tokens * hidden
