"""Run an engine as its own process, alone or under torchrun; show its progress; turn its end into
an artifact directory or into an error that a person can act on.

The job directory's name is made of the stage, its version, its spec and its inputs' digests. The
same words find the same directory, so a killed stage continues where its last complete checkpoint
stands, and a second copy started at the same time waits for the first and takes its result.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from blake3 import blake3

from infra.errors import Stopped
from infra.home import baton_home
from infra.progress import ProgressBar, say

STOP_GRACE_S = 60.0  # from SIGTERM to SIGKILL: time to write a checkpoint
# OpenMP threads that spin while they wait keep the cores from everyone else: beside one other busy
# process, vLLM on two cores ran 20 times slower with libgomp's default than with waits this short.
SHORT_WAITS = {"GOMP_SPINCOUNT": "1000"}
LOG_LINES = 20  # of the engine's last words, shown when it fails
FULL_DISK_BYTES = 1 << 20  # with less than this left, a failure is blamed on the disk too


class EngineFailed(Stopped):
    """An engine ended without a result; the message has its last words and its folder."""


@dataclass(frozen=True)
class Engine:
    """A stage's program. `version` is part of every identity: raise it when the same spec and
    inputs would give another result, and the stage is made anew everywhere."""

    stage: str
    module: str
    version: str

    def command(self, job_dir: Path, processes: int | None) -> list[str]:
        """`python -m module JOB_DIR`, under torchrun when a number of processes is given."""
        words = ["-m", self.module, str(job_dir)]
        if processes is None:
            return [sys.executable, *words]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        return [sys.executable, *torchrun, *words]


def job_directory(engine: Engine, spec: dict[str, Any], digests: dict[str, str]) -> Path:
    """Where a piece of work is done. Its identity is what it says, never where it runs."""
    words = json.dumps([engine.stage, engine.module, engine.version, spec, digests], sort_keys=True)
    return baton_home() / "jobs" / f"{engine.stage}-{blake3(words.encode()).hexdigest()[:16]}"


def run_engine(
    engine: Engine, job_dir: Path, request: dict[str, Any], *, title: str, processes: int | None = None
) -> Path:
    """Run to the end and return JOB_DIR/output; at once when it is there already.

    `request` becomes spec.json. `title` is what the terminal shows. Raises EngineFailed;
    KeyboardInterrupt and SystemExit (on SIGTERM) pass through after the engine has stopped.
    """
    job_dir.mkdir(parents=True, exist_ok=True)
    with _locked_log(job_dir) as log:
        result = _read_result(job_dir)
        if "digest" in result and (job_dir / "output" / "manifest.json").exists():
            return job_dir / "output"
        (job_dir / "result.json").unlink(missing_ok=True)
        (job_dir / "spec.json").write_text(json.dumps(request, indent=1))
        log_start = log.tell()  # it may hold earlier runs
        returncode = _run(engine.command(job_dir, processes), job_dir, title, log)
        result = _read_result(job_dir)
        if returncode == 0 and "digest" in result:
            return job_dir / "output"
        raise EngineFailed(_last_words(title, job_dir, returncode, result, log_start))


def _run(command: list[str], job_dir: Path, title: str, log: IO[bytes]) -> int:
    """Start the engine in a session of its own and follow it to its end."""
    environment = (
        SHORT_WAITS | os.environ | {"BATON_LAUNCHED": "1", "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "true"}
    )
    (job_dir / "progress.json").unlink(missing_ok=True)
    with _sigterm_as_exit():
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # the engine ends when this end closes, however we die
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
        bar = ProgressBar(title, job_dir / "progress.json")
        try:
            while True:
                try:
                    return process.wait(timeout=0.2)
                except subprocess.TimeoutExpired:
                    bar.update()
        except (KeyboardInterrupt, SystemExit):
            say(f"{title}: stopping; the same command continues from its last checkpoint")
            raise
        finally:
            _stop(process)
            bar.close(process.returncode == 0)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Leave no process of the engine behind. SIGTERM first; at once when the user will not wait."""
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=STOP_GRACE_S)
    except (subprocess.TimeoutExpired, ProcessLookupError):
        pass  # it had its time; what is left is killed below
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the usual case: nothing is left
        process.wait()
        if process.stdin:
            process.stdin.close()  # torchrun's workers have sessions of their own, but this stdin


@contextmanager
def _locked_log(job_dir: Path) -> Iterator[IO[bytes]]:
    """The job's log, open for appending and locked. Every process of the engine has it as its stdout, and
    with it the lock: nobody may start here while one of them is still saving, whatever became of us."""
    with (job_dir / "log.txt").open("ab") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{job_dir.name}: another run is at work on this; waiting for its result")
            fcntl.flock(log, fcntl.LOCK_EX)
        yield log


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """While an engine runs, SIGTERM unwinds the stack like Ctrl-C does, so that the engine is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers; the engine still ends with us, by its stdin
        return

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _read_result(job_dir: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((job_dir / "result.json").read_text()))
    except FileNotFoundError:
        return {}


def _last_words(title: str, job_dir: Path, returncode: int, result: dict[str, Any], log_start: int) -> str:
    with (job_dir / "log.txt").open("rb") as stream:
        stream.seek(log_start)
        log = stream.read().decode(errors="replace")
    folder = f"  Folder: {job_dir}"
    killed_rank = _killed_rank(log)
    if "traceback" in result and not killed_rank:  # a bug
        return f"{title}: {result['kind']}: {result['error']}\n{_tail(result['traceback'])}{folder}"
    if "error" in result and "traceback" not in result:
        return f"{title}: {result['error']}\n  (log: {job_dir / 'log.txt'})"
    how = killed_rank or _exit(returncode)
    if shutil.disk_usage(job_dir).free < FULL_DISK_BYTES:
        how += f"; the disk of {job_dir} is full"
    return f"{title} {how}. Its last lines:\n{_tail(log)}{folder}"


def _exit(returncode: int) -> str:
    return f"ended with exit code {returncode}" if returncode >= 0 else _killed(-returncode)


def _killed(signum: int) -> str:
    hint = " (out of memory? `dmesg` says so if it was)" if signum == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(signum).name}{hint}"


def _killed_rank(log: str) -> str | None:
    """Torchrun's word on the rank that was killed first: the others fail because of it, with a traceback."""
    found = re.search(r"failed \(exitcode: -(\d+)\) local_rank: (\d+)", log)
    return f"(rank {found[2]}) {_killed(int(found[1]))}" if found else None


def _tail(text: str) -> str:
    return "".join(f"    {line.rstrip()}\n" for line in text.splitlines()[-LOG_LINES:])
