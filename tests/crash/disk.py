"""The possible contents of a disk after a power cut, according to POSIX: all synced data, and any part of the rest.

A run is a list of events on inodes. An event that changes something is *durable* once its file, or the folder whose
list of names it changes, was synced after it; fsync of a file does not sync its name. Of the other events, any subset
may have reached the disk, and of a write any part (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014).
Renames are atomic, as on every journaling file system.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ROOT = 0  # inode of the recorded folder


@dataclass(frozen=True)
class Write:
    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncate:
    inode: int
    size: int


Name = tuple[int, str]  # a folder's inode, and a name in it


@dataclass(frozen=True)
class Rename:
    """An atomic change of names: `old` is removed, and `new` refers to the inode. Either may be None."""

    old: Name | None
    new: Name | None
    inode: int = -1
    makes_folder: bool = False


@dataclass(frozen=True)
class Sync:
    inode: int | None  # None stands for everything


Change = Write | Truncate | Rename
Event = Change | Sync


@dataclass
class Disk:
    """Contents of files and names in folders, by inode."""

    files: dict[int, bytearray] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})

    def copy(self) -> "Disk":
        files = {inode: bytearray(content) for inode, content in self.files.items()}
        return Disk(files, {inode: dict(names) for inode, names in self.folders.items()})

    def apply(self, change: Change) -> None:
        match change:
            case Write(inode, offset, data):
                content = self.files.setdefault(inode, bytearray())
                content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(data)] = data
            case Truncate(inode, size):
                self.files[inode] = self.files.get(inode, bytearray())[:size].ljust(size, b"\0")
            case Rename(old, new, inode, makes_folder):  # a folder's content may reach the disk before its name
                if old:
                    self.folders.setdefault(old[0], {}).pop(old[1], None)
                if new:
                    self.folders.setdefault(new[0], {})[new[1]] = inode
                if makes_folder:
                    self.folders.setdefault(inode, {})

    def tree(self) -> dict[str, bytes | None]:
        """Return the reachable paths and the content of each, which is None for a folder."""
        return dict(self._below(ROOT, PurePosixPath()))

    def _below(self, inode: int, place: PurePosixPath) -> Iterator[tuple[str, bytes | None]]:
        for name, child in sorted(self.folders[inode].items()):
            path = place / name
            if child in self.folders:
                yield str(path), None
                yield from self._below(child, path)
            else:
                yield str(path), bytes(self.files.get(child, b""))


@dataclass(frozen=True)
class Recording:
    """A run: the disk before it, and its events."""

    before: Disk
    events: Sequence[Event]

    def pending(self, point: int) -> list[int]:
        """Return the changes among the first `point` events that may be lost in a power cut after them."""
        waiting: dict[int, set[int]] = {}  # for each change, the inodes that must still be synced
        for number, event in enumerate(self.events[:point]):
            match event:
                case Sync(None):
                    waiting.clear()
                case Sync(inode):
                    for left in waiting.values():
                        left.discard(inode)
                    waiting = {change: left for change, left in waiting.items() if left}
                case Rename(old, new):
                    waiting[number] = {name[0] for name in (old, new) if name}
                case Write(inode) | Truncate(inode):
                    waiting[number] = {inode}
        return list(waiting)

    def after(self, point: int, way: str, seed: int = 0) -> Disk:
        """Return the disk after a power cut behind the first `point` events, in one of WAYS."""
        chance = random.Random(f"{point} {way} {seed}")
        likely = chance.choice((0.2, 0.5, 0.8))
        pending = set(self.pending(point)) if way != "all" else set()
        disk = self.before.copy()
        for number, event in enumerate(self.events[:point]):
            if isinstance(event, Sync):
                continue
            if number not in pending or WAYS[way](event, chance, likely):
                if number in pending and way == "any" and isinstance(event, Write) and chance.random() < 0.3:
                    event = _torn(event, chance)
                disk.apply(event)
        return disk


def _torn(write: Write, chance: random.Random) -> Write:
    """Return a part of a write: its beginning, or its size without its content."""
    if chance.random() < 0.5:
        return Write(write.inode, write.offset, write.data[: chance.randrange(len(write.data) + 1)])
    return Write(write.inode, write.offset, bytes(len(write.data)))


# the unsynced changes that have reached the disk
WAYS = {
    "none": lambda change, chance, likely: False,
    "all": lambda change, chance, likely: True,  # kill -9, which the kernel survives
    "names": lambda change, chance, likely: isinstance(change, Rename),  # names without file contents
    "contents": lambda change, chance, likely: not isinstance(change, Rename),
    "any": lambda change, chance, likely: chance.random() < likely,
}


def read(folder: Path) -> Disk:
    """Read a folder; hard links within it are one inode."""
    disk = Disk()
    known: dict[tuple[int, int], int] = {}
    inodes = {folder: ROOT}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        inode = known.setdefault((state.st_dev, state.st_ino), len(known) + 1)
        disk.folders[inodes[path.parent]][path.name] = inode
        if path.is_dir():
            inodes[path] = inode
            disk.folders[inode] = {}
        else:
            disk.files[inode] = bytearray(path.read_bytes())
    return disk


def write(tree: dict[str, bytes | None], folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, content in tree.items():
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
