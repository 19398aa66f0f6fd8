"""Sizes of the check's models and data: full for a GPU, tiny to run the same code on a CPU."""

import sysconfig
from dataclasses import dataclass
from pathlib import Path

from baton.tasks.data.source_spec import FilesSource, StdlibSource
from baton.tasks.hardware.memory import GPU
from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.memory import estimate
from baton.tasks.pretrain.optimizer_spec import OptimizerSpec
from baton.tasks.pretrain.spec import CheckpointPolicy, PretrainSpec


@dataclass(frozen=True)
class Size:
    """One of the two sizes."""

    name: str
    source: StdlibSource | FilesSource  # Python's standard library, or a part of it
    small: ModelSpec  # trained, killed, exported, served and tuned
    large: ModelSpec  # trained and profiled
    sequence: int  # tokens
    batch: int  # sequences per pretraining step
    steps: int  # of pretraining
    prompt: int  # maximum tokens of a prompt in post-training, half its characters
    new: int  # maximum tokens of a completion
    rows: int  # per post-training step
    tuning_rate: float  # learning rate with which a supervised loss falls within ten steps
    matrix: int  # rows and columns of the multiplied matrices
    requests: int  # concurrent, to vLLM

    def vocabulary(self) -> int:
        size = self.small.vocab_size
        assert size is not None
        return size

    def pretraining(self, model: ModelSpec, precision: str = "bf16", **layout: int) -> PretrainSpec:
        """A short pretraining run, on one process unless `layout` says otherwise."""
        return PretrainSpec.model_validate(
            {
                "model": model,
                "optimizer": OptimizerSpec(lr=1e-3, min_lr=1e-4, warmup_steps=2),
                "sequence_length": self.sequence,
                "global_batch": self.batch,
                "steps": self.steps,
                "precision": precision,
                "validate_every": self.steps,
                "validation_sequences": 2,
                "layout": Layout.model_validate({"micro_batch": 1, **layout}),
                "checkpoints": CheckpointPolicy(every=self.steps),
            }
        )


def fitting(spec: PretrainSpec, memory_gb: float) -> PretrainSpec | None:
    """The spec with the largest micro batch whose estimate is within 90 % of the GPU's memory. None: even a micro batch
    of 1 does not fit."""
    for micro_batch in (8, 4, 2, 1):
        layout = spec.layout.model_copy(update={"micro_batch": micro_batch})
        found = spec.model_copy(update={"layout": layout})
        if not found.problems() and estimate(found, spec.model.vocab_size or 0, GPU).total <= 0.9e9 * memory_gb:
            return found
    return None


def _shape(**fields: int | float) -> ModelSpec:
    return ModelSpec.model_validate({"family": "qwen3", **fields})


FULL = Size(
    name="full",
    source=StdlibSource(),
    # Qwen3-0.6B's layers: 474 M parameters with this vocabulary
    small=_shape(layers=28, hidden=1024, heads=16, kv_heads=8, head_dim=128, ffn_hidden=3072, max_positions=4096,
                 rope_theta=1e6, vocab_size=32768),
    # 1.01 B parameters, the shape of tests/benchmarks/pretrain.py
    large=_shape(layers=20, hidden=2048, heads=16, kv_heads=8, head_dim=128, ffn_hidden=5632, max_positions=4096,
                 rope_theta=1e6, vocab_size=32768),
    sequence=4096,
    batch=16,
    steps=12,
    prompt=512,
    new=256,
    rows=32,
    tuning_rate=5e-4,
    matrix=8192,
    requests=256,
)  # fmt: skip

TINY = Size(
    name="tiny",
    source=FilesSource(path=str(Path(sysconfig.get_path("stdlib")) / "asyncio")),
    small=_shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=32, ffn_hidden=128, max_positions=256,
                 vocab_size=320),
    large=_shape(layers=3, hidden=64, heads=4, kv_heads=2, head_dim=32, ffn_hidden=192, max_positions=256,
                 vocab_size=320),
    sequence=64,
    batch=8,
    steps=24,
    prompt=96,
    new=32,
    rows=8,
    tuning_rate=5e-3,
    matrix=512,
    requests=8,
)  # fmt: skip

SIZES = {size.name: size for size in (FULL, TINY)}
