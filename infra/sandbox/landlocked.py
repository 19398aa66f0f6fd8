"""A sandbox for machines that do not allow namespaces: sandlock (Landlock and seccomp), with an additional seccomp
filter.

It is stricter than bubblewrap: one process without threads, no writable file, no socket but socketpair. A program can
see whether a path of the host exists. As with bubblewrap, root becomes the user nobody first. sandlock's wheel includes
its native library; it needs Linux 6.12.
"""

import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from baton.infra.sandbox import bubblewrap, seccomp
from baton.infra.sandbox.program import MIB, Limits, NoSandbox
from baton.infra.sandbox.worker import Worker, interpreter, rlimits

READABLE = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/dev/null", "/dev/zero", "/dev/urandom")
MOST_PROCESSES = 1
REAP_S = 1.0  # until a checker whose program was killed has ended


def missing() -> str:
    """Return the requirement that this machine lacks; empty if it has all."""
    if importlib.util.find_spec("sandlock") is None:
        return "there is no Python package sandlock"
    from sandlock import landlock_abi_version, min_landlock_abi

    if landlock_abi_version() < min_landlock_abi():
        return f"it needs version {min_landlock_abi()} of Landlock; this kernel has {landlock_abi_version()}"
    prefix = interpreter()[1][0]
    if os.getuid() == 0 and not bubblewrap.open_to_all(prefix):
        return f"programs run as nobody, who cannot reach the Python in {prefix}: use one outside of root's home"
    return ""


class Landlocked:
    """A process under sandlock; its standard streams are pipes."""

    def __init__(self, argv: Sequence[str], folders: Sequence[Path]) -> None:
        from sandlock import Sandbox, StdioMode

        self._folder = Path(tempfile.mkdtemp(prefix="baton-sandbox-"))
        self._folder.chmod(0o755)
        readable = [*(path for path in READABLE if Path(path).exists()), *map(str, folders), str(self._folder)]
        sandbox = Sandbox(
            fs_readable=readable,
            cwd=str(self._folder),
            clean_env=True,
            env=bubblewrap.ENVIRONMENT | {"HOME": str(self._folder)},
        )
        as_nobody = bubblewrap.AS_NOBODY if os.getuid() == 0 else []
        try:
            self._process = sandbox.popen([*as_nobody, *argv], *[StdioMode.PIPED] * 3)
        except RuntimeError as error:
            shutil.rmtree(self._folder)
            raise NoSandbox(f"sandlock: {error}") from error
        self._pid = self._process.pid
        self._code: int | None = None
        self.stdin, self.stdout, self.stderr = self._process.stdin, self._process.stdout, self._process.stderr

    def put(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Write the files: the program itself cannot."""
        for name, data in files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return {}

    def kill(self) -> None:
        """Kill the process. A checker's only child, the program, dies with it (runner.py); but it is killed before, so
        that the checker has time to end by itself: not every container's first process reaps orphans."""
        if self._code is None and self._pid:
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                for child in Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
                    self.wait(REAP_S)
                if self._code is None:
                    os.kill(self._pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end of the process; return its exit code, or None after `timeout_s`."""
        if self._code is None:
            result = self._process.wait(timeout_s)
            ended = result.exit_code if result.signal <= 0 else 128 + result.signal
            self._code = ended if ended >= 0 else 128 + signal.SIGKILL
        return self._code

    def oom_killed(self) -> bool:
        """Return False: an allocation fails before the kernel kills the process for memory."""
        return False

    def close(self) -> None:
        """Kill the process if it still runs, and delete its folder."""
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        shutil.rmtree(self._folder)


def start(limits: Limits, folders: Sequence[Path]) -> Worker:
    """Start a sandbox, which waits for its program. Raises NoSandbox."""
    if limits.processes > MOST_PROCESSES:
        raise NoSandbox(f"processes: {limits.processes}: sandlock allows {MOST_PROCESSES}; more need bubblewrap")
    argv, required = interpreter()
    bounds = rlimits(limits, limits.memory_mb * MIB, processes=1) | {"RLIMIT_FSIZE": (0, 0)}
    del bounds["RLIMIT_NPROC"]  # it would count the user's other processes; the filter allows none
    return Worker(Landlocked(argv, [*required, *folders]), limits, bounds, folders, seccomp.program(alone=True))
