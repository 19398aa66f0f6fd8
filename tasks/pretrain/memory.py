"""Estimate the memory of a training process for weights, gradients, optimizer and activations.

The estimate is the peak of torch's tensor allocations during a step, on the pipeline stage that needs the most. It does
not count CUDA's context, NCCL's buffers or fragmentation, and assumes that tokens are evenly distributed over experts.

Activations are the tensors that the forward pass saves for the backward pass (micro batches in flight x layers), plus
the largest temporary: the logits, or one layer's backward pass. They depend on the kernels (`Kernels`). No kernel
materializes all attention scores or all logits.
"""

from baton.tasks.hardware.memory import GPU, Kernels, Memory
from baton.tasks.pretrain.spec import PretrainSpec

INDEX = 8  # bytes of a token id or an index
FLOAT = 4  # bytes of values that are always in fp32: gradients, optimizer state, softmax


def estimate(spec: PretrainSpec, vocab_size: int, kernels: Kernels = GPU) -> Memory:
    """Return the memory of the process that needs the most."""
    stages = (_Stage(spec, vocab_size, kernels, number).memory() for number in range(spec.layout.pipeline))
    return max(stages, key=lambda memory: memory.total)


class _Stage:
    """One rank of one pipeline stage."""

    def __init__(self, spec: PretrainSpec, vocab_size: int, kernels: Kernels, number: int) -> None:
        self.spec, self.model, self.layout, self.kernels, self.number = spec, spec.model, spec.layout, kernels, number
        self.first, self.last = number == 0, number == spec.layout.pipeline - 1
        layout, model = spec.layout, spec.model
        self.vocabulary = vocab_size // layout.tensor
        self.element = 4 if spec.precision == "fp32" else 2
        self.tokens = layout.micro_batch * spec.sequence_length // layout.context
        self.local_tokens = self.tokens // (layout.tensor if layout.sequence_parallel else 1)  # in the residual stream
        self.queries = model.heads * model.head_dim // layout.tensor
        self.keys = model.kv_heads * model.head_dim // layout.tensor

    def memory(self) -> Memory:
        dense, experts = self.parameters()
        total = dense + experts
        return Memory(
            weights=total * self.element + (2 * total if self.spec.precision == "fp8" else 0),
            gradients=total * FLOAT,
            optimizer=self.optimizer(dense, experts),
            activations=self.activations(),
        )

    # -- weights ---------------------------------------------------------------------------------

    def parameters(self) -> tuple[int, int]:
        """Return the number of parameters on this rank: (without experts, of the experts)."""
        model, layout = self.model, self.layout
        qkv = self.queries + 2 * self.keys
        attention = model.hidden * (qkv + self.queries)
        attention += 2 * model.head_dim if model.shape().qk_norm else 0
        attention += qkv if model.shape().qkv_bias else 0
        layer, experts = attention + 2 * model.hidden, 0
        if model.experts is None:
            layer += 3 * model.hidden * model.ffn_hidden // layout.tensor
        else:
            layer += model.hidden * model.experts.count
            layer += 3 * model.hidden * model.experts.shared_ffn_hidden // layout.tensor
            expert = 3 * model.hidden * model.experts.ffn_hidden // layout.expert_tensor
            experts = expert * model.experts.count // layout.expert
        layers = model.layers // layout.pipeline
        table = self.vocabulary * model.hidden
        tables = self.first + self.last if layout.pipeline > 1 or not model.tied_embeddings else 1
        return layers * layer + tables * table + (model.hidden if self.last else 0), layers * experts

    def optimizer(self, dense: int, experts: int) -> int:
        """Return the bytes of Adam's two moments, and of fp32 master weights for 16-bit weights."""
        size = 2 * FLOAT if self.spec.precision == "fp32" else 3 * FLOAT
        if not self.layout.distributed_optimizer:
            return size * (dense + experts)
        layout = self.layout
        expert_ranks = layout.world // (layout.pipeline * layout.expert * layout.expert_tensor)
        return size * (dense // (layout.data * layout.context) + experts // expert_ranks)

    # -- activations -----------------------------------------------------------------------------

    def activations(self) -> int:
        residual = self.element * self.model.hidden * self.local_tokens
        full_layer = self.layer()
        layer_bytes = residual if self.layout.recompute == "full" else self.layer(self.layout.recompute == "selective")
        layers = self.model.layers // (self.layout.pipeline * self.layout.virtual_pipeline)
        chunk = layers * layer_bytes
        if self.layout.pipeline > 1:
            chunk += 2 * residual  # received from the previous stage and sent to the next
        held = self.in_flight() * chunk
        work = self.backward_work() + (full_layer if self.layout.recompute == "full" else 0)
        if self.first:
            held += self.in_flight() * INDEX * self.tokens
        if self.spec.mask_documents and self.kernels.attention_rows:  # the document mask
            held += self.in_flight() * self.tokens * self.spec.sequence_length
        if not self.last:
            return held + work
        if self.layout.pipeline == 1 and self.model.tied_embeddings:  # the gradient waits for the embedding's
            work += self.element * self.vocabulary * self.model.hidden
        return held + max(work, self.output())

    def in_flight(self) -> int:
        """Return the largest number of a chunk's forward passes whose backward pass is pending."""
        layout = self.layout
        micro_batches = self.spec.global_batch // (layout.micro_batch * layout.data)
        ahead = layout.pipeline - self.number - 1
        if layout.virtual_pipeline > 1:
            ahead = 2 * ahead + (layout.virtual_pipeline - 1) * layout.pipeline
        return min(ahead + 1, micro_batches * layout.virtual_pipeline)

    def layer(self, recompute_attention: bool = False) -> int:
        """Return the bytes that one layer's forward pass saves for its backward pass."""
        norms = 2 * self.norm(self.model.hidden, self.local_tokens)
        inputs = 2 * self.element * self.model.hidden * self.local_tokens  # inputs of the products after the norms
        return norms + inputs + self.attention(recompute_attention) + self.feed_forward()

    def norm(self, width: int, rows: int) -> int:
        return rows * (self.element * width + FLOAT)

    def attention(self, recompute: bool) -> int:
        model, ranks = self.model, self.layout.context
        grouped = model.heads != model.kv_heads
        copied = self.keys_copied() and not recompute
        value_views = recompute or (ranks == 1 and not copied)  # if not, they are copies
        head_norm = model.shape().qk_norm
        saved = 2 * self.queries  # the queries after rotary embedding, and the result
        if recompute:
            saved += self.keys
        elif copied:  # for each chunk of queries: the keys and values up to its end
            saved += self.queries * (2 if ranks == 1 else 2 * ranks + 1)
        else:  # gathered over the context parallel ranks
            saved += ranks * self.keys * (1 if value_views else 2)
        if value_views or head_norm:
            saved += self.queries + 2 * self.keys  # QKV: the values, or the input of the keys' norm, are views of it
        size = saved * self.element + (self.head_norms(grouped) if head_norm else 0)
        if not recompute:
            size += self.queries // model.head_dim * FLOAT  # the softmax's sums
        rotary = 4 * self.element * model.head_dim * self.spec.sequence_length // ranks
        return self.tokens * size + rotary + (0 if recompute else self.mask())

    def head_norms(self, grouped: bool) -> int:
        """Return the bytes that the norms of one token's queries and keys save."""
        copied = self.queries if grouped else 0  # grouped queries are not contiguous
        sums = (self.queries + self.keys) // self.model.head_dim * FLOAT
        return copied * self.element + sums

    def masked(self) -> bool:
        """Return whether attention needs a mask beyond causality."""
        window = self.model.sliding_window
        return (
            self.layout.context > 1 or self.spec.mask_documents or bool(window and window < self.spec.sequence_length)
        )

    def keys_copied(self) -> bool:
        """Return whether attention repeats grouped keys and values for each query head (attention.fused)."""
        grouped = self.model.heads != self.model.kv_heads
        return not self.kernels.attention_rows and grouped and (self.masked() or self.spec.precision == "fp32")

    def mask(self) -> int:
        """Return the bytes of the attention mask as a bias that is added to the scores."""
        spec, ranks = self.spec, self.layout.context
        if self.kernels.attention_rows or not self.masked():  # with rows, the mask is recomputed for each block
            return 0
        if ranks == 1:
            cells = spec.sequence_length**2
        else:  # two chunks of queries, with 2 x ranks + 1 chunks of keys in total
            cells = (spec.sequence_length // (2 * ranks)) ** 2 * (2 * ranks + 1)
        return self.element * cells * (self.layout.micro_batch if spec.mask_documents else 1)

    def feed_forward(self) -> int:
        experts = self.model.experts
        width = 3 if self.kernels.fused_swiglu else 4  # gate and up, their product, and silu(gate)
        if experts is None:
            return self.tokens * width * self.element * self.model.ffn_hidden // self.layout.tensor
        routed = self.local_tokens * (experts.count * (2 * FLOAT + 1) + experts.top_k * (3 * INDEX + FLOAT))
        slot = self.model.hidden * self.element + INDEX + FLOAT
        scaled = 0 if self.kernels.fused_swiglu else 1  # the result, scaled by the router's weight
        slot += (width + scaled) * self.element * experts.ffn_hidden // self.layout.expert_tensor
        shared = self.tokens * width * self.element * experts.shared_ffn_hidden // self.layout.tensor
        return routed + self.slots() * slot + shared

    def slots(self) -> int:
        """Return the number of tokens that all ranks send to this rank's experts."""
        experts = self.model.experts
        return self.local_tokens * experts.top_k * self.layout.expert_tensor if experts else 0

    def backward_work(self) -> int:
        """Return the bytes of temporaries in a layer's backward pass: the feed-forward's gradients, the experts'
        results, or attention scores."""
        spec, experts = self.spec, self.model.experts
        columns = spec.sequence_length  # scores, weights and their gradient, for some rows
        chunk = columns // (2 * self.layout.context) if self.layout.context > 1 else columns
        rows = min(self.kernels.attention_rows, chunk)
        scores = 3 * self.element * self.layout.micro_batch * rows * columns * self.queries // self.model.head_dim
        keys = 2 * FLOAT * self.tokens * self.keys * self.layout.context if rows else 0  # gradients of keys and values
        if experts is None:
            return max(3 * self.element * self.tokens * self.model.ffn_hidden // self.layout.tensor, scores + keys)
        copies = 5 if self.layout.expert > 1 else 3  # copies of the experts' results: permuted, sent, permuted
        work = self.element * self.model.hidden * (copies * self.slots() + 2 * self.local_tokens)
        return max(work, scores + keys)

    def output(self) -> int:
        """Return the bytes of the last norm, a piece of the logits, and their gradients."""
        width, kernels = self.model.hidden, self.kernels
        hidden = self.norm(width, self.local_tokens) + self.element * width * (self.local_tokens + self.tokens)
        logits = self.element * self.tokens * self.vocabulary
        in_fp32 = 0 if self.element == FLOAT else min(FLOAT * self.tokens * self.vocabulary, kernels.logits_in_fp32)
        gradient = self.vocabulary * width
        total = FLOAT * gradient if logits > kernels.logits else 0  # sum over pieces
        return hidden + min(logits, kernels.logits) + total + max(in_fp32, self.element * gradient)
