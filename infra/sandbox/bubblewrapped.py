"""A process under bubblewrap, which is killed together with all that it started."""

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from baton.infra.sandbox import bubblewrap, seccomp
from baton.infra.sandbox.cgroup import Cgroup, delegated
from baton.infra.sandbox.program import MIB, Limits
from baton.infra.sandbox.worker import Worker, interpreter, rlimits

START_S = 60.0  # until bubblewrap reports its child, on a busy machine


class Bubblewrapped:
    """A process whose standard streams are pipes. It ends with the thread that started it (setpriv's --pdeathsig is
    PR_SET_PDEATHSIG, which the kernel sends when that thread ends)."""

    def __init__(self, argv: Sequence[str], limits: Limits, folders: Sequence[Path]) -> None:
        self._killed = False
        parent = delegated()
        self._cgroup = Cgroup(parent, limits) if parent else None
        self._info, info_write = os.pipe()
        seccomp_fd = os.memfd_create("seccomp")
        try:
            os.write(seccomp_fd, seccomp.program())
            os.lseek(seccomp_fd, 0, os.SEEK_SET)
            self._outer = subprocess.Popen(
                [
                    *(self._cgroup.enter() if self._cgroup else []),
                    *bubblewrap.command(argv, limits, folders, seccomp_fd, info_write),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(seccomp_fd, info_write),
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                start_new_session=True,
            )
        except BaseException:
            os.close(self._info)
            if self._cgroup:
                self._cgroup.remove()
            raise
        finally:
            os.close(seccomp_fd)
            os.close(info_write)
        assert self._outer.stdin and self._outer.stdout and self._outer.stderr
        self.stdin, self.stdout, self.stderr = self._outer.stdin, self._outer.stdout, self._outer.stderr

    def put(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return all files: the process's folder is in its own mount namespace, so the runner writes them."""
        return dict(files)

    def kill(self) -> None:
        """Kill the first process of the PID namespace: the kernel kills the others with it, and unshare, which waits
        for it, ends when none is left. If bubblewrap is still starting, wait until there is a first process."""
        if self._outer.poll() is not None:
            return
        self._killed = True
        started = select.poll()  # not select.select, which accepts no descriptor above 1,023
        started.register(self._info, select.POLLIN)
        if not started.poll(1000 * START_S):
            self._outer.kill()
            return
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            for child in Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end of the process; return its exit code, or None after `timeout_s`."""
        if self._killed:  # unshare (util-linux 2.38) reports that, and would wait for a reader if the pipe is full
            self.stdout.close()
            self.stderr.close()
        try:
            code = self._outer.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        if self._killed:
            return 128 + signal.SIGKILL
        return code if code >= 0 else 128 - code

    def oom_killed(self) -> bool:
        """Return whether a process was killed for memory."""
        return self._cgroup is not None and self._cgroup.oom_killed()

    def close(self) -> None:
        """Kill the process if it still runs, and wait until nothing is left of it."""
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        os.close(self._info)
        if self._cgroup:
            self._cgroup.remove()


def start(limits: Limits, folders: Sequence[Path]) -> Worker:
    """Start a sandbox, which waits for its program."""
    argv, required = interpreter()
    # RLIMIT_AS binds one process: without a cgroup each gets its share. RLIMIT_NPROC counts this user namespace,
    # including the runner
    shares = 1 if delegated() else limits.processes
    bounds = rlimits(limits, limits.memory_mb * MIB // shares, limits.processes + 1)
    return Worker(Bubblewrapped(argv, limits, [*required, *folders]), limits, bounds, folders)
