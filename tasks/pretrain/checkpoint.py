"""Checkpoints: Megatron's dist_checkpointing, each complete only once its manifest is written.

    work/checkpoints/step-00000100/   *.distcp, .metadata, common.pt, metadata.json, manifest.json

A killed save leaves a directory without a manifest; it is never loaded. Megatron's common.pt and
.metadata are pickles: a checkpoint is read only after its files' digests match its manifest.
"""

import os
import pickle
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tasks.manifest import MANIFEST, verify, write_manifest
from tasks.pretrain.megatron import CUDA

# isort: split
from megatron.core import dist_checkpointing
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

KIND = "training_state"


@dataclass
class TrainingState:
    """Everything that a step changes."""

    chunks: list[GPTModel]  # of this rank: one, or several of an interleaved pipeline
    optimizer: MegatronOptimizer
    scheduler: OptimizerParamScheduler
    step: int = 0
    samples: int = 0  # sequences consumed: the position in the data
    losses: list[float] = field(default_factory=list)  # of the last steps: what tells a spike

    def sharded(self, is_loading: bool) -> dict[str, Any]:
        # as Megatron names them: the optimizer looks for `model`, or model0, model1 …
        names = [f"model{number}" for number in range(len(self.chunks))] if len(self.chunks) > 1 else ["model"]
        models = {name: chunk.sharded_state_dict() for name, chunk in zip(names, self.chunks, strict=True)}
        of_optimizer = models if len(self.chunks) > 1 else models["model"]
        return {
            **models,
            "optimizer": self.optimizer.sharded_state_dict(of_optimizer, is_loading=is_loading),
            "scheduler": self.scheduler.state_dict(),
            "step": self.step,
            "samples": self.samples,
            "losses": self.losses,
            "rng": {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state() if CUDA else None},
        }


def save(state: TrainingState, folder: Path, keep: int, writer: bool) -> Path:
    """Write a checkpoint of `state`, then drop all but the newest `keep`. Every process calls it;
    the one that is `writer` makes and seals the directory."""
    path = folder / f"step-{state.step:08d}"
    if writer:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    torch.distributed.barrier()
    dist_checkpointing.save(state.sharded(is_loading=False), str(path), ("torch_dist", 1))
    torch.distributed.barrier()
    if writer:
        write_manifest(path, KIND, {"step": state.step, "samples": state.samples}, {}, {})
        for old in complete(folder)[:-keep]:
            shutil.rmtree(old)
    return path


def complete(folder: Path) -> list[Path]:
    """The checkpoints that were written to the end, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / MANIFEST).exists())


def load(state: TrainingState, path: Path) -> None:
    """Continue from a checkpoint. Raises ArtifactError when its files are not what was written."""
    verify(path)
    loaded = dist_checkpointing.load(state.sharded(is_loading=True), str(path))
    for number, chunk in enumerate(state.chunks):
        chunk.load_state_dict(loaded[f"model{number}" if len(state.chunks) > 1 else "model"])
    state.optimizer.load_state_dict(loaded["optimizer"])
    state.scheduler.load_state_dict(loaded["scheduler"])
    state.step, state.samples, state.losses = loaded["step"], loaded["samples"], loaded["losses"]
    torch.set_rng_state(loaded["rng"]["cpu"])
    if CUDA and loaded["rng"]["cuda"] is not None:
        torch.cuda.set_rng_state(loaded["rng"]["cuda"])


def copy_content(path: Path, target: Path) -> None:
    """A checkpoint's files without what belongs to this run alone: its manifest; in .metadata the
    path, a random id, and the order in which torch's writers happened to end. The artifact's digest
    must not depend on them."""
    # linked, not copied: the checkpoint stays whole should we be killed now
    shutil.copytree(
        path, target, copy_function=os.link, ignore=shutil.ignore_patterns(MANIFEST, ".metadata", "common.pt")
    )
    common = torch.load(path / "common.pt", map_location="cpu", weights_only=False)  # ours as well
    torch.save(_rebuilt(common), target / "common.pt")
    metadata = pickle.loads((path / ".metadata").read_bytes())  # written by this job, checked by `verify`
    metadata.storage_meta = None
    metadata.storage_data = dict(sorted(metadata.storage_data.items(), key=lambda item: repr(item[0])))
    with (target / ".metadata").open("wb") as stream:
        pickler = pickle.Pickler(stream)
        pickler.fast = True  # no references to equal objects: which are one object is chance as well
        pickler.dump(metadata)


def _rebuilt(value: Any) -> Any:
    """The same value of new objects: a pickle also says which equal objects are one, and a resumed run
    shares others than an undisturbed one."""
    if isinstance(value, dict):
        return {_rebuilt(key): _rebuilt(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_rebuilt(item) for item in value)
    if isinstance(value, str):
        return sys.intern(value)
    return value.clone() if isinstance(value, torch.Tensor) else value


def load_weights(model: GPTModel, path: Path) -> set[str]:
    """Fill `model` from a checkpoint's weights alone; returns the names of the weights that the
    checkpoint has. The files must have been checked against their digests before."""
    wanted = {"model": model.sharded_state_dict()}
    loaded = dist_checkpointing.load(wanted, str(path))
    model.load_state_dict(loaded["model"])
    return {name for name in dist_checkpointing.load_tensors_metadata(str(path)) if not name.startswith("optimizer.")}
