"""Start a subprocess that runs users' functions (worker.py, tasks/environments/host.py), and send it requests.

Processes that the functions start end with the subprocess, whatever their session or process group: there are two
subprocesses, and the first adopts the processes that the second leaves behind (tasks/user_code/load_function.py:
`end_together`). This requires neither root nor namespaces, and process ids are those of the machine.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from baton import SEARCH_PATH
from baton.infra.paths import QUIET
from baton.infra.process.process_group import kill_group
from baton.tasks.core.job import StageError
from baton.tasks.user_code.load_function import SOURCES, STACKS, stuck_at

# Environment variables that a function may need to run, but none that may contain a key
VISIBLE = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "HF_HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip
GRACE_S = 5.0  # time beyond the functions' timeouts after which a worker that hasn't ended itself is killed
END_S = 5.0  # time for a worker to end after its pipe is closed


class NotInstalled(StageError):
    """Raised if a module that a function imports is missing on this machine."""


class UserProcess:
    """A running worker: `module` with the folder and `arguments`, in an environment with only VISIBLE and the variables
    named in `environment`. `what`: a noun for messages."""

    def __init__(
        self, folder: Path, environment: Sequence[str], module: str, *arguments: str, what: str = "reward"
    ) -> None:
        self.folder, self.what = folder, what
        (folder / SOURCES).mkdir(parents=True)
        seen = {name: os.environ[name] for name in (*VISIBLE, *environment) if name in os.environ}
        path = os.pathsep.join(filter(None, [*SEARCH_PATH, seen.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(folder), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=folder / SOURCES,
            start_new_session=True,
            env=QUIET | {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"} | seen | {"PYTHONPATH": path},
        )
        assert self._process.stdin and self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        for stream in (self._stdin, self._stdout):
            os.set_blocking(stream.fileno(), False)

    def ask(self, request: str, limit_s: float) -> dict[str, Any]:
        """Send a request, one line of JSON, and return the answer. `limit_s`: the longest time without a message, until
        a message sets the limit for the next one. Raises StageError with the function's failure."""
        last: dict[str, Any] = {"at": "functions", "limit": f"{limit_s:g} s"}
        try:
            for message in self._messages(request.encode() + b"\n", limit_s):
                if "answer" in message:
                    return dict(message["answer"])
                last |= message
                if "error" in message and "at" not in message:
                    break
        except TimeoutError:
            raise StageError(self._late(last)) from None
        kind = NotInstalled if last.get("not_installed") else StageError
        raise kind(f"{self.what} {last['error']}" if "error" in last else self._ended(last))

    def _messages(self, request: bytes, limit_s: float) -> Iterator[dict[str, Any]]:
        """Yield the worker's messages until it ends. Raises TimeoutError, and StageError for output that is not a
        message."""
        if self._stdin.closed:
            return
        left, received = memoryview(request), bytearray()
        deadline = time.monotonic() + limit_s + GRACE_S
        poll = select.poll()
        poll.register(self._stdin, select.POLLOUT)
        poll.register(self._stdout, select.POLLIN)
        while True:
            ready = poll.poll(1000 * max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            for number, _ in ready:
                if number == self._stdin.fileno():
                    try:
                        left = left[os.write(number, left) :]
                    except BrokenPipeError:
                        left = left[:0]
                    if not left:
                        poll.unregister(number)
                elif part := os.read(number, 1 << 16):
                    received += part
                else:
                    return
            while (end := received.find(b"\n")) >= 0:
                try:
                    message = dict(json.loads(received[:end]))
                except (TypeError, ValueError):  # a function has written to the pipe
                    self.close()
                    sent = f"{bytes(received[:end])!r:.60}"
                    raise StageError(f"the process of {self.what} sent no message, but {sent[1:]}") from None
                del received[: end + 1]
                deadline = time.monotonic() + message.get("limit_s", limit_s) + GRACE_S
                yield message

    def close(self) -> None:
        """End the process and all processes that it has started."""
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGCONT)  # it may be stopped with its group
        for stream in (self._stdin, self._stdout):
            stream.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            kill_group(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _late(self, last: dict[str, Any]) -> str:
        """Format the failure of a process that sent nothing in time. `last`: its last messages."""
        stopped = "; its process is stopped (SIGSTOP)" if self._is_stopped() else ""
        self.close()
        where = stuck_at(self.folder / STACKS, self.folder / SOURCES)
        at = last["at"] if "error" not in last else f"{last['at']} ({last['error']})"
        return f"{self.what} {at} did not finish within {last['limit']}{stopped}{': ' if where else ''}{where}"

    def _ended(self, last: dict[str, Any]) -> str:
        """Format the failure of a process that has ended without an answer."""
        try:
            code: int | None = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            code = None
        self.close()
        if where := stuck_at(self.folder / STACKS, self.folder / SOURCES):
            return f"{self.what} {last['at']} did not finish within {last['limit']}: {where}"
        ending = "closed its pipe" if code is None else ended(code)
        return f"the process of {self.what} {last['at']} {ending}; see the log for its output"

    def _is_stopped(self) -> bool:
        """Return whether the process, or its child, is stopped."""
        pid = self._process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            states = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[0] for each in (pid, *children)]
        except OSError:
            return False  # the process has ended meanwhile
        return "T" in states


def ended(code: int) -> str:
    """Describe how a process has ended, by subprocess's return code."""
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (out of memory? `dmesg` says so if it was)" if -code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"
