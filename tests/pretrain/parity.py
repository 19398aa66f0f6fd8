"""The same small model on the same data under many layouts; `torchrun … -m tests.pretrain.parity FOLDER DATA`.

Every layout in FOLDER/layouts.json that fits the number of processes is trained from the same seed,
one after the other in the same processes. Each leaves FOLDER/<model>-<layout>.pt: the loss and the
gradient norm of each step, and the whole weights, put together from the ranks' parts.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tasks.pretrain.batches import build_datasets, micro_batches
from tasks.pretrain.initialization import shards
from tasks.pretrain.layout import Layout
from tasks.pretrain.model_spec import ExpertsSpec, ModelSpec
from tasks.pretrain.optimizer_spec import OptimizerSpec
from tasks.pretrain.process import model_parallel
from tasks.pretrain.spec import PretrainSpec
from tasks.pretrain.training import Training

STEPS = 20
VOCABULARY = 256
SHAPE: dict[str, Any] = {
    "layers": 4, "hidden": 32, "heads": 8, "kv_heads": 8, "head_dim": 8, "max_positions": 64, "init_std": 0.05,
    "vocab_size": VOCABULARY,
}  # fmt: skip
MODELS = {
    # qk-norm, grouped queries and tied embeddings; each of them has gradients that a layout could lose
    "dense": ModelSpec(**SHAPE | {"layers": 8, "kv_heads": 4, "ffn_hidden": 64}),
    # QKV bias, untied
    "biased": ModelSpec(**SHAPE, family="qwen2", ffn_hidden=64, tied_embeddings=False),
    "experts": ModelSpec(
        **SHAPE,
        family="qwen3_moe",
        experts=ExpertsSpec(count=8, top_k=2, ffn_hidden=32, shared_ffn_hidden=32, aux_loss=1e-2),
    ),
}


def spec(model: str, layout: Layout) -> PretrainSpec:
    return PretrainSpec(
        model=MODELS[model],
        optimizer=OptimizerSpec(lr=3e-3, min_lr=3e-4, warmup_steps=2),
        sequence_length=32,
        global_batch=16,
        steps=STEPS,
        precision="fp32",
        layout=layout,
    )


def train(model: str, layout: Layout, data: Path, folder: Path) -> None:
    wanted = spec(model, layout)
    with model_parallel(layout, wanted.seed):
        dataset, _ = build_datasets(wanted, [data], VOCABULARY, folder / "index")
        training = Training(wanted, VOCABULARY)
        losses, norms = [], []
        for step in range(STEPS):
            batches = micro_batches(dataset, wanted.samples_at(step), wanted.global_batch, layout.micro_batch)
            losses.append(training.gradients(batches))
            norms.append(training.gradient_norm())
            training.update(norms[-1])
            training.scheduler.step(increment=1)
        weights = gathered(training)
    if dist.get_rank() == 0:
        found = {"losses": losses, "norms": norms, "weights": weights}
        torch.save(found, folder / f"{model}-{layout.name()}.pt")
        print(f"{model} {layout.name()}: {losses[0]:.4f} → {losses[-1]:.4f}", flush=True)


def gathered(training: Training) -> dict[str, torch.Tensor]:
    """The whole weights by name, on rank 0; every element is there, and equal where ranks share it."""
    mine = [
        (part.key, part.global_shape, part.global_offset, part.data.detach().view(_local_shape(part)))
        for chunk in training.chunks
        for part in shards(chunk)
    ]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    whole: dict[str, torch.Tensor] = {}
    for name, shape, offset, local in (item for rank in everyone for item in rank):
        tensor = whole.setdefault(name, torch.full(shape, float("nan")))
        place = tensor[tuple(slice(start, start + size) for start, size in zip(offset, local.shape, strict=True))]
        if not (place.isnan() | (place == local)).all():
            raise AssertionError(f"{name}: ranks that share a weight have come apart")
        place.copy_(local)
    for name, tensor in whole.items():
        if tensor.isnan().any():
            raise AssertionError(f"{name}: no rank has all of it")
    return whole


def _local_shape(part: Any) -> tuple[int, ...]:
    return (1,) * part.prepend_axis_num + tuple(part.local_shape)


def main() -> None:
    folder, data = Path(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for model, words in json.loads((folder / "layouts.json").read_text()):
        layout = Layout.model_validate(words)
        if layout.world == dist.get_world_size():
            train(model, layout, data, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
