"""Start a subprocess that runs users' functions (worker.py, tasks/environments/host.py), and send it requests."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.paths import QUIET
from infra.supervisor import kill_group
from tasks.job import StageError
from tasks.load_function import SOURCES, STACKS, stuck_at

# environment variables that a function may need to run; none that may contain a key
VISIBLE = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "HF_HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip
GRACE_S = 10.0  # beyond the functions' timeouts, until a worker that hasn't ended itself is killed


class Process:
    """A running worker, `module` with the folder and `arguments`, whose environment has only VISIBLE and the variables
    named in `environment`. `what` it runs is for messages."""

    def __init__(
        self, folder: Path, environment: Sequence[str], module: str, *arguments: str, what: str = "reward"
    ) -> None:
        self.folder, self.what = folder, what
        (folder / SOURCES).mkdir(parents=True)
        root = str(Path(__file__).parents[2])
        seen = {name: os.environ[name] for name in (*VISIBLE, *environment) if name in os.environ}
        path = os.pathsep.join(filter(None, [root, seen.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(folder), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder / SOURCES,
            start_new_session=True,  # a process group, so that its children end with it
            env=QUIET | {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"} | seen | {"PYTHONPATH": path},
        )

        self._ends = threading.Thread(target=self._end_children, name=self.what, daemon=True)
        self._ends.start()

    def _end_children(self) -> None:
        """Kill children that outlive the process, since they hold the other end of the pipe."""
        self._process.wait()
        kill_group(self._process.pid, signal.SIGKILL)

    def ask(self, request: str, limit_s: float) -> dict[str, Any]:
        """Send a request, one line of JSON, and return the answer. Raises StageError with the function's failure."""
        assert self._process.stdin and self._process.stdout
        last: dict[str, Any] = {"at": "functions"}
        timer = threading.Timer(limit_s + GRACE_S, self._kill)
        timer.start()
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                last = json.loads(line)
                if "answer" in last:
                    return dict(last["answer"])
                if "error" in last and "at" not in last:
                    break
        except (OSError, ValueError):
            pass  # the process has ended (its pipes are closed); reported below
        finally:
            timer.cancel()
        raise StageError(f"{self.what} {last['error']}" if "error" in last else self._failure(last))

    def close(self) -> None:
        """Kill the process and its children."""
        self._kill()
        self._ends.join()
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            try:
                pipe.close()
            except OSError:
                pass  # a request that was not read

    def _kill(self) -> None:
        if self._process.poll() is None:
            kill_group(self._process.pid, signal.SIGKILL)

    def _failure(self, last: dict[str, Any]) -> str:
        """Format the failure of a process that sent no answer; `last` is its last message."""
        self.close()
        if where := stuck_at(self.folder / STACKS, self.folder / SOURCES):
            return f"{self.what} {last['at']} did not finish within {last['limit']}: {where}"
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the process of {self.what} {last['at']} {how}; see the log for its output"
