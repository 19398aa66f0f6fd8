"""Send files between the nodes of a run that share no folder; the job's folder is that of node 0.

Each rank writes its files of a checkpoint on its own node, and sends them to node 0, which seals the checkpoint and
keeps it in storage (tasks/core/offsite.py), as a single machine does. To resume, node 0 sends a copy to the others, so
that all nodes read the same checkpoint whatever an earlier attempt left on their disks. The files are sent with gloo,
even beside NCCL's collectives, and may be sent from a background thread.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from baton.infra.storage.durable import make_folder, remove
from baton.tasks.core.job import Job
from baton.tasks.core.manifest import MANIFEST, ArtifactError

T = TypeVar("T")
Entry = tuple[str, int]  # a file's name in its folder, and its size

PIECE = 64 << 20  # bytes
PIECE_S = 3600.0  # time limit of a piece and of waiting for a rank's turn; the launcher detects a lost machine


def nodes_have_own_folders(job: Job) -> bool:
    """Return whether torchrun has started this process on several nodes, each of which has its own folder for the
    job."""
    return bool(job.storage) and int(os.environ["WORLD_SIZE"]) > int(os.environ["LOCAL_WORLD_SIZE"])


def nodes_of(job: Job) -> "Nodes | None":
    """Return the nodes of this run, or None if there is one node, or if they share the job's folder. Collective."""
    return Nodes() if nodes_have_own_folders(job) else None


class Nodes:
    """The nodes of a run, from one rank's point of view. All methods are collective. Names and files are those of a
    folder that each node has under its own path."""

    def __init__(self) -> None:
        self.processes = int(os.environ["LOCAL_WORLD_SIZE"])  # number of processes on each node
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.leads = self.local_rank == 0  # whether this rank is the first on its node
        self.is_first = self.rank < self.processes  # whether this node is node 0
        timeout = timedelta(seconds=PIECE_S)
        leaders = list(range(0, self.world, self.processes))
        self._everyone = dist.new_group(backend="gloo", timeout=timeout)
        self._leaders = dist.new_group(leaders, backend="gloo", timeout=timeout)

    def on_first(self, work: Callable[[], T]) -> T:
        """Return rank 0's result of `work` on every rank, or raise the ArtifactError that it raised."""
        outcome: list[T | ArtifactError | None] = [None]
        if self.rank == 0:
            try:
                outcome = [work()]
            except ArtifactError as error:
                outcome = [error]
        dist.broadcast_object_list(outcome, src=0, group=self._everyone)
        if isinstance(outcome[0], ArtifactError):
            raise outcome[0]
        return outcome[0]  # type: ignore[return-value]

    def collect(self, folder: Path, names: Iterable[str]) -> None:
        """Send this rank's files to node 0. Raises OSError on rank 0 if a file cannot be written, after the others have
        sent theirs too."""
        if self.rank == 0:
            failed: list[OSError] = []
            for rank in range(self.processes, self.world):
                failed += _write(folder, self._entries_from(rank), partial(self._receive, rank))
            if failed:
                raise failed[0]
        elif not self.is_first:
            entries = [(name, (folder / name).stat().st_size) for name in names]
            dist.send_object_list([entries], dst=0, group=self._everyone)
            for piece in _read(folder, entries):
                dist.send(piece, dst=0, group=self._everyone)

    def collect_all(self, folder: Path) -> None:
        """Send all files in each node's folder to node 0, after its ranks have written them."""
        self.collect(folder, [name for name, _ in _entries(folder)] if self.leads else ())

    def spread(self, folder: Path) -> None:
        """Copy a folder of node 0 to the other nodes, which may have had another folder of this name."""
        if self.rank == 0:
            entries = _entries(folder)
            dist.broadcast_object_list([entries], src=0, group=self._leaders)
            for piece in _read(folder, entries):
                dist.broadcast(piece, src=0, group=self._leaders)
        elif self.leads:
            remove(folder)
            make_folder(folder)
            announced: list[list[Entry]] = [[]]
            dist.broadcast_object_list(announced, src=0, group=self._leaders)
            failed = _write(folder, announced[0], lambda piece: dist.broadcast(piece, src=0, group=self._leaders))
            if failed:
                raise failed[0]
        dist.barrier()

    def drop(self, folder: Path) -> None:
        """Remove the other nodes' parts or copies of a folder. Call it when no rank reads or writes them any more."""
        if self.leads and not self.is_first:
            remove(folder)

    def _entries_from(self, rank: int) -> list[Entry]:
        announced: list[list[Entry]] = [[]]
        dist.recv_object_list(announced, src=rank, group=self._everyone)
        return announced[0]

    def _receive(self, rank: int, piece: torch.Tensor) -> None:
        dist.recv(piece, src=rank, group=self._everyone)


def _entries(folder: Path) -> list[Entry]:
    """Return the files of a folder with the manifest last, so that an incomplete copy has no manifest."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    entries = [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files]
    return sorted(entries, key=lambda entry: (entry[0] == MANIFEST, entry[0]))


def _pieces(size: int) -> Iterator[torch.Tensor]:
    """Yield memory for the pieces of a file, one after the other; all of them use the same memory."""
    memory = torch.empty(min(size, PIECE), dtype=torch.uint8)
    for start in range(0, size, PIECE):
        yield memory[: min(PIECE, size - start)]


def _read(folder: Path, entries: list[Entry]) -> Iterator[torch.Tensor]:
    for name, size in entries:
        with (folder / name).open("rb") as stream:
            for piece in _pieces(size):
                if stream.readinto(piece.numpy().data) != len(piece):
                    raise OSError(f"{folder / name} became shorter while it was sent to another node")
                yield piece


def _write(folder: Path, entries: list[Entry], receive: Callable[[torch.Tensor], None]) -> list[OSError]:
    """Receive files and write them. Return the errors of writing."""
    return [error for name, size in entries for error in _write_file(folder / name, size, receive)]


def _write_file(path: Path, size: int, receive: Callable[[torch.Tensor], None]) -> list[OSError]:
    pieces = _pieces(size)
    try:
        make_folder(path.parent)
        with path.open("wb") as stream:
            for piece in pieces:
                receive(piece)
                stream.write(piece.numpy().data)
    except OSError as error:
        for piece in pieces:
            receive(piece)  # else the sender would wait
        return [error]
    return []
