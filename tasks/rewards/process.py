"""A process that runs some rewards (worker.py), from its owner's side."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from infra.home import QUIET
from infra.watch import kill_group
from tasks.job import StageError
from tasks.rewards.worker import SOURCES, STACKS

# Of the environment, what a function may need to run; nothing that may hold a key
VISIBLE = (
    "PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "HF_HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
)  # fmt: skip
GRACE_S = 10.0  # beyond its functions' own limits, for a process that its own watch does not end
_PLACE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)


class Process:
    """Started when made. It sees no environment but VISIBLE and what `environment` names."""

    def __init__(self, folder: Path, own: bool, environment: list[str]) -> None:
        self.folder = folder
        (folder / SOURCES).mkdir(parents=True)
        root = str(Path(__file__).parents[2])
        seen = {name: os.environ[name] for name in (*VISIBLE, *environment) if name in os.environ}
        path = os.pathsep.join(filter(None, [root, seen.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tasks.rewards.worker", str(folder), "own" if own else "theirs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder / SOURCES,
            start_new_session=True,  # a group of its own, so that its children end with it
            env=QUIET | {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"} | seen | {"PYTHONPATH": path},
        )

        self._ends = threading.Thread(target=self._end_children, name="rewards", daemon=True)
        self._ends.start()

    def _end_children(self) -> None:
        """A child that outlives the process would hold the other end of our pipe."""
        self._process.wait()
        kill_group(self._process.pid, signal.SIGKILL)

    def ask(self, request: str, limit_s: float) -> dict[str, Any]:
        """The answer to a request, one line of JSON. Raises StageError with what became of the function."""
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
            pass  # it has ended, perhaps earlier (its pipes are closed); how is said below
        finally:
            timer.cancel()
        raise StageError(f"reward {last['error']}" if "error" in last else self._end(last))

    def close(self) -> None:
        """End it, and its children."""
        self._kill()
        self._ends.join()
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            try:
                pipe.close()
            except OSError:
                pass  # words that nobody has read

    def _kill(self) -> None:
        if self._process.poll() is None:
            kill_group(self._process.pid, signal.SIGKILL)

    def _end(self, last: dict[str, Any]) -> str:
        """What became of a process that gives no answer, in words; `last` is what it was at."""
        self.close()
        stacks = self.folder / STACKS
        main = stacks.read_text(errors="replace").rpartition("Thread ")[2] if stacks.exists() else ""  # it stands last
        places = list(_PLACE.finditer(main))
        if places:
            sources = self.folder / SOURCES
            theirs = [place for place in places if Path(place["file"]).is_relative_to(sources)]
            place = (theirs or places)[0]
            name = Path(place["file"]).relative_to(sources) if theirs else Path(place["file"]).name
            where = f"it stands at {name}, line {place['line']}, in {place['function']}"
            return f"reward {last['at']} was not done within {last['limit']}: {where}"
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the process that runs reward {last['at']} {how}; what it printed stands in the log"
