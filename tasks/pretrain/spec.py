"""What a pretraining run is: the model's shape, its data order, its optimizer and schedule."""

from typing import Literal

from pydantic import Field

from tasks.spec import Problem, Spec


class ModelSpec(Spec):
    """A decoder in the shape of Qwen3: RMSNorm, SwiGLU, RoPE, grouped-query attention, qk-norm."""

    layers: int = Field(6, ge=1, le=256, description="Transformer layers")
    hidden: int = Field(256, ge=8, le=65536, description="Width of the residual stream")
    heads: int = Field(4, ge=1, le=1024, description="Query heads")
    kv_heads: int = Field(2, ge=1, le=1024, description="Key/value heads (query groups); divides heads")
    head_dim: int = Field(64, ge=2, le=1024, description="Size of one head; even, for RoPE")
    ffn_hidden: int = Field(768, ge=8, le=262144, description="Width of the SwiGLU feed-forward layer")
    max_positions: int = Field(512, ge=8, le=1048576, description="Longest sequence the model can take, in tokens")
    rope_theta: float = Field(10000.0, ge=1.0, description="Base of the rotary frequencies")
    norm_eps: float = Field(1e-6, gt=0, lt=1e-2, description="Epsilon of RMSNorm")
    init_std: float = Field(0.02, gt=0, lt=1, description="Standard deviation of the initial weights")
    vocab_size: int | None = Field(
        None, ge=8, le=10_000_000, description="Rows of the embedding, at least the tokenizer's; default: exactly those"
    )
    tied_embeddings: bool = Field(True, description="Output projection shares the embedding's weights")

    def problems(self) -> list[Problem]:
        found = []
        if self.heads % self.kv_heads:
            found.append(Problem("kv_heads", self.kv_heads, f"must divide heads ({self.heads}) without remainder"))
        if self.head_dim % 2:
            found.append(Problem("head_dim", self.head_dim, "must be even: RoPE turns pairs of dimensions"))
        return found

    def parameters(self, vocab_size: int) -> int:
        """The exact number of weights."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads) + 2 * self.head_dim
        layer = attention + 3 * self.hidden * self.ffn_hidden + 2 * self.hidden
        embeddings = vocab_size * self.hidden * (1 if self.tied_embeddings else 2)
        return self.layers * layer + embeddings + self.hidden


class OptimizerSpec(Spec):
    """AdamW and its learning-rate schedule, as Megatron-Core has them."""

    lr: float = Field(3e-3, gt=0, le=1, description="Peak learning rate")
    min_lr: float = Field(3e-4, ge=0, le=1, description="Learning rate at the end of the decay")
    warmup_steps: int = Field(40, ge=0, description="Steps of linear warm-up from 0")
    decay: Literal["cosine", "linear", "WSD"] = Field("cosine", description="Shape of the decay")
    wsd_decay_steps: int = Field(0, ge=0, description="With WSD: steps of the final decay")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first-moment decay")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW's second-moment decay")
    eps: float = Field(1e-8, gt=0, lt=1, description="AdamW's epsilon")
    weight_decay: float = Field(0.1, ge=0, le=1, description="Decoupled weight decay; not on norms")
    clip_grad: float = Field(1.0, gt=0, description="Largest global gradient norm")

    def problems(self) -> list[Problem]:
        found = []
        if self.min_lr > self.lr:
            found.append(Problem("min_lr", self.min_lr, f"at most lr ({self.lr})"))
        if self.decay == "WSD" and self.wsd_decay_steps == 0:
            found.append(Problem("wsd_decay_steps", 0, "at least 1 with decay: WSD"))
        if self.decay != "WSD" and self.wsd_decay_steps:
            found.append(Problem("wsd_decay_steps", self.wsd_decay_steps, f"0 with decay: {self.decay}"))
        return found


class PretrainSpec(Spec):
    """One pretraining run. `steps x global_batch x sequence_length` tokens are seen."""

    engine: Literal["megatron"] = Field("megatron", description="What trains")
    model: ModelSpec = Field(ModelSpec(), description="The model's shape")
    optimizer: OptimizerSpec = Field(OptimizerSpec(), description="Optimizer and schedule")
    sequence_length: int = Field(256, ge=8, le=1048576, description="Tokens in one training sequence")
    global_batch: int = Field(16, ge=1, le=1048576, description="Sequences in one step")
    micro_batch: int = Field(16, ge=1, le=65536, description="Sequences in one forward pass; divides global_batch")
    steps: int = Field(600, ge=1, description="Optimizer steps")
    precision: Literal["bf16", "fp32"] = Field("bf16", description="Compute precision; master weights are fp32")
    seed: int = Field(1234, ge=0, lt=2**31, description="Seed of the weights and of the data order")
    checkpoint_every: int = Field(100, ge=1, description="Steps between checkpoints (the last step always has one)")
    keep_checkpoints: int = Field(2, ge=1, le=1000, description="Newest checkpoints kept while training")
    validate_every: int = Field(100, ge=1, description="Steps between validations (the last step always has one)")
    validation_sequences: int = Field(64, ge=1, description="Held-out sequences in one validation")

    def problems(self) -> list[Problem]:
        found = [problem.under("model") for problem in self.model.problems()]
        found += [problem.under("optimizer") for problem in self.optimizer.problems()]
        if self.global_batch % self.micro_batch:
            allowed = f"must divide global_batch ({self.global_batch}) without remainder"
            found.append(Problem("micro_batch", self.micro_batch, allowed))
        if self.sequence_length > self.model.max_positions:
            allowed = f"at most model.max_positions ({self.model.max_positions})"
            found.append(Problem("sequence_length", self.sequence_length, allowed))
        warm_and_cool = self.optimizer.warmup_steps + self.optimizer.wsd_decay_steps
        if warm_and_cool >= self.steps:
            allowed = f"with optimizer.wsd_decay_steps, less than steps ({self.steps})"
            found.append(Problem("optimizer.warmup_steps", self.optimizer.warmup_steps, allowed))
        return found

    def tokens(self) -> int:
        return self.steps * self.global_batch * self.sequence_length
