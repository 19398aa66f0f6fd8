"""One sandbox, which starts ahead of its program, runs one program, and is removed."""

import errno
import marshal
import os
import re
import selectors
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from baton.infra.sandbox.program import MIB, Limits, NoSandbox, Program, Result

RUNNER = Path(__file__).with_name("runner.py").read_text()
START_S = 300.0  # until a sandbox is ready, on a busy machine
# a limit -> the last line of a Python program's standard error when it reaches the limit
_EXCEPTIONS = {
    "memory": re.compile(rb"MemoryError\b.*|OSError: \[Errno 12\].*"),
    "processes": re.compile(rb"BlockingIOError: \[Errno 11\].*|RuntimeError: can't (start new thread|allocate lock)"),
    "files": re.compile(rb"OSError: \[Errno (?:%d|%d|%d)\].*" % (errno.ENOSPC, errno.EFBIG, errno.EMFILE)),
}


class Process(Protocol):
    """A confined process whose standard streams are pipes."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]

    def put(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Write the files to the process's folder; return those that the process must write itself."""
        ...

    def kill(self) -> None: ...

    def wait(self, timeout_s: float | None = None) -> int | None: ...

    def oom_killed(self) -> bool:
        """Return whether a process was killed for memory."""
        ...

    def close(self) -> None: ...


class Worker:
    """A started sandbox, for one program. Close it, or use it as a context manager."""

    def __init__(
        self,
        process: Process,
        limits: Limits,
        rlimits: dict[str, tuple[int, int]],
        folders: Sequence[Path],
        filter: bytes = b"",
    ) -> None:
        self._process, self._limits = process, limits
        self._job = {"limits": rlimits, "path": list(map(str, folders)), "filter": filter}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes of the sandbox; when this returns, no process and no file is left."""
        self._process.close()

    def run(self, program: Program) -> Result:
        """Run the program to its end or to a limit. Raises NoSandbox if the sandbox did not start."""
        self._until_ready()
        files = self._process.put(program.files)
        job = marshal.dumps(
            self._job
            | {"argv": list(program.argv), "source": program.source, "files": files}
            | {"checker": program.checker, "modules": dict(program.modules)}
        )
        begun = time.monotonic()
        exchange = _Exchange(self._process, self._limits.output_kb * 1024, begun + self._limits.wall_s)
        met = exchange.until_closed(len(job).to_bytes(8, "little") + job + program.stdin)
        code = self._process.wait(max(0.0, begun + self._limits.wall_s - time.monotonic())) if met is None else None
        if code is None:
            met = met or "wall"
            self._process.kill()
            code = self._process.wait()
        assert code is not None
        stdout, stderr = exchange.output
        if met is None:
            met = "memory" if self._process.oom_killed() else _limit(code, stderr)
        return Result(code, stdout, stderr, met, time.monotonic() - begun)

    def _until_ready(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if selector.select(START_S) and os.read(self._process.stdout.fileno(), 1):
                return
        self._process.kill()
        reason = self._process.stderr.read().decode(errors="replace").strip()
        raise NoSandbox(f"the sandbox did not start: {reason or f'it was not ready after {START_S:g} s'}")


class _Exchange:
    """Writes a process's input while reading a bounded amount of its output."""

    def __init__(self, process: Process, most: int, deadline: float) -> None:
        self._process, self._most, self._deadline = process, most, deadline
        self._read = {process.stdout: bytearray(), process.stderr: bytearray()}

    @property
    def output(self) -> tuple[bytes, bytes]:
        stdout, stderr = (bytes(data[: self._most]) for data in self._read.values())
        return stdout, stderr

    def until_closed(self, data: bytes) -> str | None:
        """Exchange data until both outputs are closed; return the limit that was reached first, if any."""
        with selectors.DefaultSelector() as selector:
            left = memoryview(data)
            selector.register(self._process.stdin, selectors.EVENT_WRITE)
            for stream, read in self._read.items():
                selector.register(stream, selectors.EVENT_READ, read)
            for stream in (self._process.stdin, *self._read):
                os.set_blocking(stream.fileno(), False)
            reading = len(self._read)
            while reading:
                ready = selector.select(max(0.0, self._deadline - time.monotonic()))
                if not ready:
                    return "wall"
                for key, _ in ready:
                    if key.data is None:
                        left = _written(self._process.stdin, left)
                        if not left:
                            selector.unregister(self._process.stdin)
                            self._process.stdin.close()
                        continue
                    part = os.read(key.fd, 1 << 16)
                    key.data.extend(part)
                    if len(key.data) > self._most:
                        return "output"
                    if not part:
                        selector.unregister(key.fileobj)
                        reading -= 1
                if time.monotonic() > self._deadline:
                    return "wall"
        return None


def _written(stream: IO[bytes], data: memoryview) -> memoryview:
    """Write a part of the data; return the rest, which is empty if the program does not read it."""
    try:
        return data[os.write(stream.fileno(), data) :]
    except BrokenPipeError:
        return data[:0]


def _limit(code: int, stderr: bytes) -> str | None:
    """Return the limit that ended a program, if any."""
    if code in (128 + signal.SIGXCPU, 128 + signal.SIGKILL):  # the second for one that ignores the first
        return "cpu"
    last = stderr.rstrip().rpartition(b"\n")[2]
    return next((name for name, exception in _EXCEPTIONS.items() if code and exception.fullmatch(last)), None)


def rlimits(limits: Limits, memory: int, processes: int) -> dict[str, tuple[int, int]]:
    """Return the resource limits that the runner sets, with `memory` (bytes) and `processes` as the kind of sandbox
    counts them."""
    disk = limits.disk_mb * MIB
    return {
        "RLIMIT_AS": (memory, memory),
        "RLIMIT_NPROC": (processes, processes),
        "RLIMIT_CPU": (limits.cpu_s, limits.cpu_s + 1),
        "RLIMIT_FSIZE": (disk, disk),
        "RLIMIT_NOFILE": (128, 128),  # pipes and sockets have buffers outside RLIMIT_AS
        "RLIMIT_SIGPENDING": (128, 128),
        "RLIMIT_MSGQUEUE": (0, 0),
        "RLIMIT_MEMLOCK": (0, 0),
        "RLIMIT_CORE": (1, 1),  # 1, not 0: a core_pattern that is a pipe runs its program, as the host's root, for 0
    }


def interpreter() -> tuple[list[str], list[Path]]:
    """Return the command that runs the runner in this process's Python, without its virtual environment, and the folder
    that it needs."""
    return [os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-c", RUNNER], [Path(sys.base_prefix).resolve()]
