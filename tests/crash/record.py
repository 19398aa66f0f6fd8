"""Record the changes that a process and its children make to a folder, with strace: writes, renames, deletions,
truncations and syncs.

with recording(trace):
    ...                      # in this process
events = read_trace(trace, folder, before)
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.crash.disk import ROOT, Disk, Event, Name, Rename, Sync, Truncate, Write

CALLS = (
    "openat,write,writev,pwrite64,pwritev,pwritev2,sendfile,copy_file_range,fallocate,truncate,ftruncate,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,"
    "fsync,fdatasync,sync,syncfs,sync_file_range,lseek,dup,dup2,dup3,fcntl,mmap"
)
OPTIONS = ["-f", "-y", "-xx", "-s", str(1 << 24), "-qq", "-e", "signal=none", "-e", f"trace={CALLS}"]

_WHOLE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\w+)(.*)")
_BEGUN = re.compile(r"(\d+) +(.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
_WORD = re.compile(r'(?P<fd>AT_FDCWD|\d+)<(?P<at>[^>]*)>(?P<gone>\(deleted\))?|"(?P<text>(?:\\x..)*)"')


def strace_is_here() -> bool:
    return shutil.which("strace") is not None


@contextmanager
def recording(trace: Path) -> Iterator[None]:
    """Record this process and its children until the end of the block."""
    tracer = subprocess.Popen(["strace", *OPTIONS, "-o", str(trace), "-p", str(os.getpid())])
    while "TracerPid:\t0\n" in Path("/proc/self/status").read_text():
        if tracer.poll() is not None:
            raise RuntimeError(f"strace ended with {tracer.returncode}: it may not trace a process here")
        time.sleep(0.01)
    time.sleep(0.1)  # strace records shortly after it has attached
    try:
        yield
    finally:
        tracer.terminate()  # detaches strace
        tracer.wait()


@dataclass
class _File:
    """An open file, which duplicated descriptors share."""

    offset: int
    appends: bool


def read_trace(trace: Path, folder: Path, before: Disk) -> list[Event]:
    """Return the events of a recording below `folder`, whose state was `before`. Raises NotImplementedError for a call
    that is not modeled."""
    reader = _Reader(folder, before)
    begun: dict[str, str] = {}
    for line in trace.read_text().splitlines():
        if match := _BEGUN.fullmatch(line):
            begun[match[1]] = match[2]
            continue
        if match := _RESUMED.fullmatch(line):
            line = f"{match[1]} {begun.pop(match[1])}{match[2]}"
        if (match := _WHOLE.fullmatch(line)) and not match[4].startswith("-") and match[4] != "?":
            reader.call(match[2], match[3], match[4], match[4] + match[5])
    return reader.events


class _Reader:
    def __init__(self, folder: Path, before: Disk) -> None:
        self.folder, self.live = str(folder), before.copy()
        self.events: list[Event] = []
        self._next = max([*before.files, *before.folders]) + 1
        self._opened: dict[tuple[str, int], _File] = {}  # (descriptor number, inode); see _file

    def call(self, name: str, arguments: str, result: str, rest: str) -> None:
        words = [_word(match) for match in _WORD.finditer(arguments)]
        if name == "openat":
            words += [_word(match) for match in _WORD.finditer(rest)]  # the name may have been relative
        if name != "sync" and not any(self._inside(path) for _, path in words):
            return
        handler = getattr(self, f"_{name}", None)
        if handler is None:
            raise NotImplementedError(f"{name}({arguments[:200]}) = {result}: not modelled")
        handler(words, arguments, int(result, 0), rest)

    def _inside(self, path: str | None) -> bool:
        return path is not None and (path == self.folder or path.startswith(self.folder + "/"))

    def _do(self, event: Event) -> None:
        self.events.append(event)
        if not isinstance(event, Sync):
            self.live.apply(event)

    # -- names -----------------------------------------------------------------------------------

    def _inode(self, path: str) -> int | None:
        inode: int | None = ROOT
        for part in Path(path).relative_to(self.folder).parts:
            inode = self.live.folders.get(inode, {}).get(part) if inode is not None else None
        return inode

    def _name(self, path: str) -> Name:
        parent = self._inode(str(Path(path).parent))
        assert parent is not None, f"{path}: unknown folder"
        return parent, Path(path).name

    def _paths(self, words: list[tuple[str, str | None]]) -> list[str]:
        """Return the paths of a call, which are absolute or relative to a folder's descriptor."""
        found, base = [], ""
        for kind, text in words:
            if kind == "fd":
                base = text or ""
            elif text is not None:
                found.append(os.path.normpath(os.path.join(base, text)))  # noqa: PTH118
        for path in found:
            if not self._inside(path):
                raise NotImplementedError(f"a name moves into or out of the recorded folder: {found}")
        return found

    def _new(self) -> int:
        self._next += 1
        return self._next

    def _mkdir(self, words: list[tuple[str, str | None]], *_: object) -> None:
        inode = self._new()
        (path,) = self._paths(words)
        self._do(Rename(None, self._name(path), inode, makes_folder=True))

    _mkdirat = _mkdir

    def _truncate(self, words: list[tuple[str, str | None]], arguments: str, *_: object) -> None:
        (path,) = self._paths(words)
        inode = self._inode(path)
        assert inode is not None, f"{path} is unknown"
        self._do(Truncate(inode, int(arguments.rsplit(", ", 1)[1])))

    def _unlink(self, words: list[tuple[str, str | None]], *_: object) -> None:
        (path,) = self._paths(words)
        self._do(Rename(self._name(path), None))

    _unlinkat = _rmdir = _unlink

    def _rename(self, words: list[tuple[str, str | None]], *_: object) -> None:
        old, new = self._paths(words)
        inode = self._inode(old)
        assert inode is not None, f"{old} is unknown"
        self._do(Rename(self._name(old), self._name(new), inode))

    _renameat = _renameat2 = _rename

    def _link(self, words: list[tuple[str, str | None]], *_: object) -> None:
        old, new = self._paths(words)
        inode = self._inode(old)
        assert inode is not None, f"{old} is unknown"
        self._do(Rename(None, self._name(new), inode))

    _linkat = _link

    # -- open files ------------------------------------------------------------------------------

    def _openat(self, words: list[tuple[str, str | None]], arguments: str, result: int, rest: str) -> None:
        path = words[-1][1]
        if path is None or not self._inside(path):
            return
        inode = self._inode(path)
        if inode is None:
            inode = self._new()
            self.live.files[inode] = bytearray()
            self._do(Rename(None, self._name(path), inode))
        if inode in self.live.folders:
            return
        if "O_TRUNC" in arguments and self.live.files[inode]:
            self._do(Truncate(inode, 0))
        if "O_SYNC" in arguments or "O_DSYNC" in arguments:
            raise NotImplementedError(f"{path}: opened with O_SYNC")
        self._opened[str(result), inode] = _File(0, "O_APPEND" in arguments)

    def _file(self, word: tuple[str, str | None], descriptor: str) -> tuple[int, _File] | None:
        """Return the inode and the open file of a descriptor, or None for a file that has no name any more. The number
        and the inode identify the open file: processes that share a number have another file there, or inherited it."""
        if word[1] is None:
            return None
        inode = self._inode(word[1])
        assert inode is not None, f"{word[1]} is unknown"
        return inode, self._opened.setdefault((descriptor, inode), _File(0, False))

    def _written(self, words: list[tuple[str, str | None]], descriptor: str, data: bytes, at: int | None) -> None:
        found = self._file(words[0], descriptor)
        if found is None or not data:
            return
        inode, opened = found
        if at is None:
            at = len(self.live.files[inode]) if opened.appends else opened.offset
            opened.offset = at + len(data)
        self._do(Write(inode, at, data))

    def _write(self, words: list[tuple[str, str | None]], arguments: str, result: int, rest: str) -> None:
        self._written(words, _descriptor(arguments), _data(arguments)[:result], None)

    _writev = _write

    def _pwrite64(self, words: list[tuple[str, str | None]], arguments: str, result: int, rest: str) -> None:
        self._written(words, _descriptor(arguments), _data(arguments)[:result], int(arguments.rsplit(", ", 1)[1]))

    def _sendfile(self, words: list[tuple[str, str | None]], arguments: str, result: int, rest: str) -> None:
        if not self._inside(words[0][1]):
            return
        source = words[1][1]
        assert source is not None
        inode = self._inode(source) if self._inside(source) else None
        content = Path(source).read_bytes() if inode is None else bytes(self.live.files[inode])
        match = re.search(r"\[(\d+)\]", arguments)
        assert match is not None, f"sendfile({arguments[:200]}) has no offset"
        start = int(match[1])
        self._written(words, _descriptor(arguments), content[start : start + result], None)

    def _lseek(self, words: list[tuple[str, str | None]], arguments: str, result: int, rest: str) -> None:
        found = self._file(words[0], _descriptor(arguments))
        if found:
            found[1].offset = result

    def _dup(self, words: list[tuple[str, str | None]], arguments: str, result: int, rest: str) -> None:
        if not self._inside(words[0][1]):
            return  # dup2 over one of our descriptors
        if (found := self._file(words[0], _descriptor(arguments))) is not None:
            self._opened[str(result), found[0]] = found[1]

    _dup2 = _dup3 = _dup

    def _fcntl(self, words: list[tuple[str, str | None]], arguments: str, result: int, rest: str) -> None:
        if "F_DUPFD" in arguments:
            self._dup(words, arguments, result, rest)

    def _ftruncate(self, words: list[tuple[str, str | None]], arguments: str, result: int, rest: str) -> None:
        if found := self._file(words[0], _descriptor(arguments)):
            self._do(Truncate(found[0], int(arguments.rsplit(", ", 1)[1])))

    def _fallocate(self, words: list[tuple[str, str | None]], arguments: str, result: int, rest: str) -> None:
        mode, start, size = arguments.rsplit(", ", 3)[1:]
        if mode != "0":
            raise NotImplementedError(f"fallocate with mode {mode}")
        if (found := self._file(words[0], _descriptor(arguments))) and (
            len(self.live.files[found[0]]) < (end := int(start) + int(size))
        ):
            self._do(Truncate(found[0], end))

    def _fsync(self, words: list[tuple[str, str | None]], *_: object) -> None:
        if words[0][1] is not None and (inode := self._inode(words[0][1])) is not None:
            self._do(Sync(inode))

    _fdatasync = _fsync

    def _sync(self, *_: object) -> None:
        self._do(Sync(None))

    _syncfs = _sync

    def _sync_file_range(self, *_: object) -> None:
        """Do nothing, since sync_file_range makes nothing durable (see the warning in its man page)."""

    def _mmap(self, words: list[tuple[str, str | None]], arguments: str, result: int, rest: str) -> None:
        if "MAP_SHARED" in arguments and "PROT_WRITE" in arguments:
            raise NotImplementedError(f"{words[0][1]}: written through memory")


def _word(match: re.Match[str]) -> tuple[str, str | None]:
    """Return ("fd" or "text", its path or text), with None for a deleted file."""
    raw = match["text"] if match["fd"] is None else match["at"]
    text = os.fsdecode(_bytes(raw)) if raw.startswith("\\x") else raw
    return ("text", text) if match["fd"] is None else ("fd", None if match["gone"] else text)


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


def _descriptor(arguments: str) -> str:
    return arguments.partition("<")[0]


def _data(arguments: str) -> bytes:
    if '"...' in arguments:
        raise NotImplementedError("a write of more than 16 MB")
    return b"".join(_bytes(found) for found in re.findall(r'"((?:\\x..)*)"', arguments))
