"""The parity matrix: the models, and every valid layout for each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from baton.tasks.models.model_spec import ExpertsSpec, ModelSpec
from baton.tasks.pretrain.layout import Layout, layouts
from baton.tasks.pretrain.optimizer_spec import OptimizerSpec
from baton.tasks.pretrain.spec import PretrainSpec

STEPS = 20
VOCABULARY = 256
GLOBAL_BATCH = 16
SHAPE: dict[str, Any] = {
    "layers": 4, "hidden": 32, "heads": 8, "kv_heads": 8, "head_dim": 8, "ffn_hidden": 64, "max_positions": 64,
    "init_std": 0.05, "vocab_size": VOCABULARY,
}  # fmt: skip
EXPERTS = ExpertsSpec(count=8, top_k=2, ffn_hidden=32, shared_ffn_hidden=32, aux_loss=1e-2)


@dataclass(frozen=True)
class Subject:
    """A model of the matrix, and the numbers of processes to test."""

    model: ModelSpec
    worlds: tuple[int, ...]
    what: str
    mask_documents: bool = False


SUBJECTS = {
    "dense": Subject(
        ModelSpec(**SHAPE | {"layers": 8, "kv_heads": 4}),
        (1, 2, 4, 8),
        "Qwen3: qk-norm, grouped queries, tied embeddings, 8 layers",
    ),
    "experts": Subject(
        ModelSpec(**SHAPE, family="qwen3_moe", experts=EXPERTS),
        (1, 2, 4, 8),
        "Qwen3-MoE: 8 experts, the best 2, a shared one, auxiliary loss, 4 layers",
    ),
    "biased": Subject(
        ModelSpec(**SHAPE, family="qwen2", tied_embeddings=False),
        (1, 2, 4),
        "Qwen2: QKV biases, untied embeddings, 4 layers",
    ),
    "windowed": Subject(
        ModelSpec(**SHAPE, family="mistral", sliding_window=12),
        (1, 2),
        "Mistral: sliding window of 12; attention stops at document boundaries, 4 layers",
        mask_documents=True,
    ),
}


def spec(subject: str, layout: Layout) -> PretrainSpec:
    return PretrainSpec(
        model=SUBJECTS[subject].model,
        optimizer=OptimizerSpec(lr=3e-3, min_lr=3e-4, warmup_steps=2),
        sequence_length=32,
        global_batch=GLOBAL_BATCH,
        steps=STEPS,
        precision="fp32",
        mask_documents=SUBJECTS[subject].mask_documents,
        layout=layout,
    )


def legal_layouts(subject: str, world: int) -> Iterator[Layout]:
    """Return all valid layouts, with and without the distributed optimizer where there is something to shard, and on
    one and two processes with each kind of recomputation."""
    for sizes in layouts(Layout(processes=world), SUBJECTS[subject].model):
        for changes in _variants(sizes):
            layout = sizes.model_copy(update={"micro_batch": _micro_batch(sizes), **changes})
            if not spec(subject, layout).problems():
                yield layout


def _variants(layout: Layout) -> list[dict[str, Any]]:
    variants: list[dict[str, Any]] = [{}]
    if layout.world == 1 or layout.data * layout.context > 1:
        variants.append({"distributed_optimizer": True})
    if layout.world <= 2:
        variants += [{"recompute": "selective"}, {"recompute": "full"}]
    return variants


def _micro_batch(layout: Layout) -> int:
    """Return a size with which a step has two micro batches (one on eight processes, to save time), or one for each
    pipeline stage."""
    least = 1 if layout.world == 8 else 2
    return max(1, GLOBAL_BATCH // (layout.data * max(least, layout.pipeline)))
