"""Save and load training checkpoints with Megatron's dist_checkpointing.

    work/checkpoints/step-00000100/   *.distcp, .metadata, common.pt, metadata.json, manifest.json

A checkpoint is complete once its manifest is written; a killed save leaves a directory without a manifest, which is
never loaded. Megatron's common.pt and .metadata are pickles, so a checkpoint is read only after the digests of its
files have been verified. It loads under any layout; on the layout that wrote it, training resumes bit for bit.

On nodes that share no folder, only node 0 has complete checkpoints (tasks/core/nodes.py).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from baton.infra.storage.disk_errors import full_disk
from baton.infra.storage.durable import make_folder, remove, sync
from baton.tasks.core.checkpoints import KIND, CheckpointFolder, check_files
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError, FileEntry, read_manifest, write_manifest, wrong_files
from baton.tasks.core.nodes import Nodes
from baton.tasks.pretrain.background import ThreadStrategy, in_background
from baton.tasks.pretrain.megatron import CUDA, DEVICE
from baton.tasks.pretrain.optimizer_state import prepare, sharded_state, updates
from baton.tasks.pretrain.spec import CheckpointPolicy

# isort: split
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.tensor_parallel import get_cuda_rng_tracker

T = TypeVar("T")


@dataclass
class TrainingState:
    """Everything that a step changes. The plain fields, `step` and below, are the same on every rank."""

    chunks: list[GPTModel]  # this rank's chunks: one, or several with an interleaved pipeline
    optimizer: MegatronOptimizer
    scheduler: OptimizerParamScheduler
    step: int = 0
    samples: int = 0  # consumed sequences, which is the position in the data
    tokens: int = 0  # consumed tokens
    losses: list[float] = field(default_factory=list)  # the last losses, to detect spikes

    def plain(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in PLAIN}
        return values | {"updates": updates(self.optimizer), "schedule": self.scheduler.num_steps}

    def sharded(self, with_rng: bool) -> dict[str, Any]:
        """Return the sharded state dict to save or to load into; tensors are not copied."""
        models = {f"model{number}": chunk.sharded_state_dict() for number, chunk in enumerate(self.chunks)}
        state = {**models, "optimizer": sharded_state(self.optimizer, models.values())}
        return state | ({"rng": _sharded_rng()} if with_rng else {})


PLAIN = fields(TrainingState)[3:]


def grid() -> dict[str, int]:
    """Return the parallel sizes, which determine each rank's part."""
    return {
        "processes": dist.get_world_size(),
        "tensor": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline": parallel_state.get_pipeline_model_parallel_world_size(),
        "virtual_pipeline": parallel_state.get_virtual_pipeline_model_parallel_world_size() or 1,
        "context": parallel_state.get_context_parallel_world_size(),
        "expert": parallel_state.get_expert_model_parallel_world_size(),
        "expert_tensor": parallel_state.get_expert_tensor_parallel_world_size(),
    }


class Checkpoints:
    """A folder of checkpoints. All methods are collective.

    `logs`: files that the run appends to. They are synced to disk before a checkpoint completes, since the steps before
    it are not repeated. `nodes`: given if the nodes share no folder."""

    def __init__(
        self, folder: Path, policy: CheckpointPolicy, logs: Sequence[Path] = (), nodes: Nodes | None = None
    ) -> None:
        self.folder, self.policy, self.logs, self.nodes = folder, policy, logs, nodes
        self._checkpoints = CheckpointFolder(folder, "step-")
        self._saving: _Saving | None = None
        self._removal: Future[None] | None = None  # removal of old checkpoints
        self._strategy = ThreadStrategy()

    # -- writing ---------------------------------------------------------------------------------

    def save(self, state: TrainingState) -> None:
        """Start a checkpoint; with an asynchronous policy, training may continue at once. Waits for the previous
        checkpoint, and raises StageError if it could not be written."""
        self.finish()
        path = self.folder / f"step-{state.step:08d}"
        if self.nodes.leads if self.nodes else dist.get_rank() == 0:
            make_folder(self.folder)
            remove(path)
            path.mkdir()
        dist.barrier()
        if not updates(state.optimizer):
            prepare(state.optimizer, 0)
        try:
            request = dist_checkpointing.save(
                state.sharded(with_rng=True),
                str(path),
                self._strategy,
                async_sharded_save=True,
                validate_access_integrity=False,  # torch validates its plan anyway
            )
            if dist.get_rank() == 0:
                # Every version of Megatron-Core reads this file, but 0.19 no longer writes it
                with (path / "common.pt").open("wb") as stream:  # a failed write to torch's own files has no reason
                    torch.save({"plain": state.plain()}, stream)
        except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError if the disk is full
            if not (reason := full_disk(error)):
                raise
            raise StageError(_not_written(path, reason)) from error
        facts = {"step": state.step, "samples": state.samples, "tokens": state.tokens, "grid": grid()}
        self._saving = _Saving(path, facts, request, in_background(lambda: self._write(path, request)))
        if not self.policy.asynchronous:
            self.finish()

    def _write(self, path: Path, request: AsyncRequest) -> dict[str, FileEntry]:
        """Write this rank's files, and return their entries for the manifest."""
        files: dict[str, FileEntry] = {}
        try:
            files = request.async_fn()
        finally:
            if self.nodes:
                self.nodes.collect(path, files)  # empty after a failure, since node 0 would wait without it
        return files

    def poll(self) -> None:
        """Complete the checkpoint in progress if every rank has written its part; call it after each step."""
        if self._saving is None:
            return
        writing = torch.tensor([not self._saving.written.done()], dtype=torch.int32, device=DEVICE)
        dist.all_reduce(writing, op=dist.ReduceOp.MAX)
        if not writing.item():
            self._complete(self._saving)

    def finish(self) -> None:
        """Wait until the checkpoint in progress is complete; call it before the process exits."""
        if self._saving is not None:
            self._complete(self._saving)
            dist.barrier()  # no rank may exit while rank 0 seals it
        if self._removal is not None:
            self._removal.result()

    def _complete(self, saving: "_Saving") -> None:
        self._saving = None
        error = saving.written.exception()  # waits
        failed = f"rank {dist.get_rank()}: {full_disk(error) or error}" if error else None
        outcome = (failed, {} if error else saving.written.result())
        outcomes: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(outcomes, outcome)
        errors = [message for message, _ in outcomes if message]
        if errors:
            raise StageError(_not_written(saving.path, "; ".join(errors))) from error
        for finalize in saving.request.finalize_fns:
            finalize()
        if self.nodes:
            self.nodes.drop(saving.path)
        if dist.get_rank() == 0:
            files = {name: entry for _, entries in outcomes for name, entry in entries.items()}
            for log in self.logs:
                if log.exists():
                    sync(log)
                    sync(log.parent)
            write_manifest(saving.path, KIND, saving.facts, known=files)
            self._removal = in_background(self._remove_old)

    def _remove_old(self) -> None:
        paths = {self._checkpoints.step(path): path for path in self.complete()}
        for step in superfluous(sorted(paths), self.policy):
            remove(paths[step])

    # -- reading ---------------------------------------------------------------------------------

    def complete(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        return self._checkpoints.complete()

    def resume(self, state: TrainingState) -> Path | None:
        """Resume from the newest complete checkpoint and return its path, or None if there is none. A damaged
        checkpoint is set aside, with a message, and the previous one is used. Raises ArtifactError if all are damaged,
        since a run must not silently start over."""
        self.finish()
        dist.barrier()
        paths = [self.folder / name for name in self._on_first(lambda: [path.name for path in self.complete()])]
        dist.barrier()
        if dist.get_rank() == 0:
            self._checkpoints.remove_incomplete()
        for path in reversed(paths):
            if self.nodes:
                self.nodes.spread(path)
            try:
                self.load(state, path)
            except ArtifactError as error:
                if dist.get_rank() == 0:
                    self._checkpoints.set_aside(path, error)
                dist.barrier()
            else:
                return path
            finally:
                if self.nodes:
                    dist.barrier()
                    self.nodes.drop(self.folder)
        self._on_first(self._checkpoints.check_not_all_damaged)
        return None

    def _on_first(self, work: Callable[[], T]) -> T:
        """Return the result of reading the folder: that of node 0 if the nodes do not share it."""
        return self.nodes.on_first(work) if self.nodes else work()

    def load(self, state: TrainingState, path: Path) -> None:
        """Resume from a checkpoint. Raises ArtifactError if its files do not match its manifest."""
        facts = _verify(path, self.nodes)
        same_grid = facts["grid"] == grid()  # RNG states cannot be redistributed to other ranks
        plain, rng = _read(state, path, with_rng=same_grid)
        state.scheduler.num_steps = plain["schedule"]
        state.scheduler.step(increment=0)
        for item in PLAIN:
            setattr(state, item.name, plain[item.name])
        if same_grid:
            _set_rng(rng)


def superfluous(steps: list[int], policy: CheckpointPolicy) -> list[int]:
    """Return the steps, of complete checkpoints from oldest to newest, that the policy does not keep."""
    return [step for step in steps[: -policy.keep_last] if not policy.keep_every or step % policy.keep_every]


@dataclass
class _Saving:
    """A checkpoint in progress."""

    path: Path
    facts: dict[str, Any]
    request: AsyncRequest
    written: "Future[dict[str, FileEntry]]"  # this rank's files


def continue_run(state: TrainingState, path: Path) -> None:
    """Start a run from another run's checkpoint: its weights, AdamW's moments and update count, and the number of
    tokens seen. Steps, schedule, data position and RNG state are the new run's. Collective; works under any layout. The
    files must have been verified."""
    plain, _ = _read(state, path, with_rng=False)
    state.tokens = plain["tokens"]


def _read(state: TrainingState, path: Path, with_rng: bool) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Load weights and optimizer state, and return the plain fields and, `with_rng`, the RNG state."""
    plain = dist_checkpointing.load_common_state_dict(str(path))["plain"]
    prepare(state.optimizer, plain["updates"])
    loaded = dist_checkpointing.load(state.sharded(with_rng), str(path))
    for number, chunk in enumerate(state.chunks):
        chunk.load_state_dict(loaded[f"model{number}"])
    return plain, loaded.get("rng", {})


def load_chunks(chunks: list[GPTModel], path: Path) -> None:
    """Load only the weights of a checkpoint into this rank's chunks. Collective. The files must have been verified."""
    template = {f"model{number}": chunk.sharded_state_dict() for number, chunk in enumerate(chunks)}
    loaded = dist_checkpointing.load(template, str(path))
    for number, chunk in enumerate(chunks):
        chunk.load_state_dict(loaded[f"model{number}"])


def _verify(path: Path, nodes: Nodes | None) -> dict[str, Any]:
    """Verify the files against the manifest, divided among the ranks that read the same files, and return its facts."""
    manifest = read_manifest(path)
    part, parts = (nodes.local_rank, nodes.processes) if nodes else (dist.get_rank(), dist.get_world_size())
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, wrong_files(path, manifest, part, parts))
    wrong = sorted({message for rank in everyone for message in rank})
    check_files(path, wrong)
    return manifest.facts


def _rng() -> dict[str, torch.Tensor]:
    """Return this rank's RNG states: torch's, and Megatron's for tensor-parallel regions. A step uses neither Python's
    nor NumPy's global state."""
    states = {"cpu": torch.get_rng_state()}
    if CUDA:
        states["cuda"] = torch.cuda.get_rng_state()
    return states | {f"megatron.{name}": state for name, state in get_cuda_rng_tracker().get_states().items()}


def _sharded_rng() -> dict[str, ShardedTensor]:
    rank = (0, dist.get_rank(), dist.get_world_size())
    return {
        name: ShardedTensor.from_rank_offsets(f"rng.{name}", state, rank, prepend_axis_num=1)
        for name, state in _rng().items()
    }


def _set_rng(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states.pop("cpu"))
    if CUDA:
        torch.cuda.set_rng_state(states.pop("cuda"))
    get_cuda_rng_tracker().set_states({name.removeprefix("megatron."): state for name, state in states.items()})


def _not_written(path: Path, reason: str) -> str:
    return (
        f"checkpoint {path} could not be written: {reason}. Free disk space, or lower checkpoints.keep_last, and start "
        f"again: the run continues from the previous checkpoint"
    )
