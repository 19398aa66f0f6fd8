"""Run an engine as its own process, alone or under torchrun; show its progress; turn its end into
an artifact directory or into an error that a person can act on.

The job directory's name is made of the stage, its version, its spec and its inputs' digests. The
same words find the same directory, so a killed stage continues where its last complete checkpoint
stands, and a second copy started at the same time waits for the first and takes its result.

When a rank dies or hangs, the whole engine is ended within a minute (infra/watch.py), the rank is
named (infra/ending.py), and where that can help the engine is started again from its checkpoint.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from blake3 import blake3

from infra.durable import make_folder, write_json
from infra.ending import Ending, ending
from infra.errors import Stopped
from infra.home import baton_home
from infra.lifeline import LAUNCHED
from infra.logs import Printed, node_log, wait_for_earlier
from infra.node import Node, this_node
from infra.pod import this_pod
from infra.progress import ProgressBar, say
from infra.watch import Watch, kill_group, read_result

STOP_GRACE = "BATON_STOP_GRACE_S"  # from SIGTERM to SIGKILL, where someone else sends the latter
STOP_GRACE_S = 60.0  # here
POD_GRACE_S = 30.0  # Kubernetes' own, where a pod says nothing else
SENDING_SHARE = 1 / 3  # of a pod's grace, in which the last checkpoint is sent
LOOK_S = 0.2  # between two looks at an engine
# OpenMP threads that spin while they wait keep the cores from everyone else: beside one other busy
# process, vLLM on two cores ran 20 times slower with libgomp's default than with waits this short.
SHORT_WAITS = {"GOMP_SPINCOUNT": "1000"}


class Terminated(SystemExit):
    """SIGTERM came. SIGKILL comes at `deadline` (time.monotonic)."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.deadline = time.monotonic() + stop_grace_s()


def stop_grace_s() -> float:
    """From SIGTERM to SIGKILL: time to write a checkpoint, and in a pod to send it."""
    return float(os.environ.get(STOP_GRACE) or (POD_GRACE_S if this_pod() else STOP_GRACE_S))


def engine_grace_s() -> float:
    """The engine's part of it."""
    return stop_grace_s() * (1 - SENDING_SHARE if this_pod() else 1)


class EngineFailed(Stopped):
    """An engine ended without a result; the message has its last words and its folder. `curable`: perhaps not
    so on another machine."""

    def __init__(self, message: str, curable: bool = False) -> None:
        super().__init__(message)
        self.curable = curable


@dataclass(frozen=True)
class Survival:
    """What is done when a process of an engine dies or hangs."""

    max_restarts: int = 0  # by engines that have checkpoints and say how far they are (infra/heartbeat.py)
    hang_timeout_s: float | None = None  # without a sign of life; None: it may take its time


@dataclass(frozen=True)
class Engine:
    """A stage's program. `version` is part of every identity: raise it when the same spec and
    inputs would give another result, and the stage is made anew everywhere."""

    stage: str
    module: str
    version: str

    def command(self, job_dir: Path, processes: int | None, node: Node) -> list[str]:
        """`python -m module JOB_DIR`, under torchrun when a number of processes is given."""
        words = ["-m", self.module, str(job_dir)]
        if processes is None:
            return [sys.executable, *words]
        # torchrun's own patience ends just before ours
        patience_s = max(1, int(engine_grace_s()) - 5)
        here = ["--nproc-per-node", str(processes), "--shutdown-timeout", str(patience_s)]
        return [sys.executable, "-m", "torch.distributed.run", *node.torchrun(), *here, *words]


def job_directory(engine: Engine, spec: dict[str, Any], digests: dict[str, str]) -> Path:
    """Where a piece of work is done. Its identity is what it says, never where it runs."""
    words = json.dumps([engine.stage, engine.module, engine.version, spec, digests], sort_keys=True)
    return baton_home() / "jobs" / f"{engine.stage}-{blake3(words.encode()).hexdigest()[:16]}"


def run_engine(
    engine: Engine,
    job_dir: Path,
    request: dict[str, Any],
    *,
    title: str,
    processes: int | None = None,
    nodes: int = 1,
    survival: Survival = Survival(),
) -> Path:
    """Run to the end and return JOB_DIR/output; at once when it is there already.

    `request` becomes spec.json. `title` is what the terminal shows. `processes` on each of `nodes`
    machines, of which this is one. Raises EngineFailed, NotPlaced; KeyboardInterrupt and SystemExit (on
    SIGTERM) pass through after the engine has stopped.
    """
    node = this_node(nodes)
    ranks = node.ranks(processes)
    make_folder(job_dir)
    with _locked_log(job_dir, node, ranks) as log, sigterm_as_exit():
        if _is_finished(job_dir):
            return job_dir / "output"
        for restart in range(survival.max_restarts + 1):
            if node.rank == 0:
                (job_dir / "result.json").unlink(missing_ok=True)
                write_json(job_dir / "spec.json", request)
            watch, printed = Watch(job_dir, ranks, survival.hang_timeout_s), Printed(job_dir, node.rank, ranks)
            returncode = _run(engine.command(job_dir, processes, node), job_dir, title, log, watch)
            if returncode == 0 and _is_finished(job_dir):
                return job_dir / "output"
            end = ending(title, job_dir, returncode, watch, printed)
            if restart == survival.max_restarts or not (end.curable and watch.got_on):
                is_bug = "traceback" in read_result(job_dir) and not watch.got_on
                message = f"{end.how}{_tries(end, restart, survival)}{end.details}"
                raise EngineFailed(message, curable=end.curable and not is_bug)
            again = f"restart {restart + 1} of {survival.max_restarts}"
            _tell(log, f"{end.how}; starting again from the newest checkpoint, {again}")
    raise AssertionError("the last start returns or raises")


def _run(command: list[str], job_dir: Path, title: str, log: IO[bytes], watch: Watch) -> int:
    """Start the engine in a session of its own and follow it to its end."""
    environment = SHORT_WAITS | os.environ | LAUNCHED | _own_modules()
    environment |= {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "true"}
    (job_dir / "progress.json").unlink(missing_ok=True)
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,  # the engine ends when this end closes, however we die
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=environment,
    )
    bar = ProgressBar(title, job_dir / "progress.json")
    grace_s = engine_grace_s()
    try:
        while watch.look():
            try:
                return process.wait(timeout=LOOK_S)
            except subprocess.TimeoutExpired:
                bar.update()
        grace_s = 0.0  # who hangs will not save
    except (KeyboardInterrupt, SystemExit):
        say(f"{title}: stopping; the same command continues from its last checkpoint")
        raise
    finally:
        _stop(process, watch, grace_s)
        bar.close(process.returncode == 0)
    return process.returncode


def _own_modules() -> dict[str, str]:
    """So that an engine imports Baton's modules wherever it is started, and none that lies in the current folder."""
    places = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, places)), "PYTHONSAFEPATH": "1"}


def _stop(process: subprocess.Popen[bytes], watch: Watch, grace_s: float) -> None:
    """Leave no process of the engine behind. SIGTERM first; at once when the user will not wait."""
    try:
        if process.poll() is None and grace_s:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=grace_s)
    except (subprocess.TimeoutExpired, ProcessLookupError):
        pass  # it had its time; what is left is killed below
    finally:
        kill_group(process.pid, signal.SIGKILL)
        watch.kill_ranks()
        process.wait()
        if process.stdin:
            process.stdin.close()  # whoever has not got as far as to leave its pid ends by this


def _is_finished(job_dir: Path) -> bool:
    return "digest" in read_result(job_dir) and (job_dir / "output" / "manifest.json").exists()


def _tries(end: Ending, restarts: int, survival: Survival) -> str:
    """Why it is not started (once more) by itself, where that was asked for."""
    if restarts:
        return f" (after {restarts} restart{'s' if restarts > 1 else ''})"
    if survival.max_restarts and end.curable:
        return " (not started again: it had not completed a step)"
    return ""


def _tell(log: IO[bytes], words: str) -> None:
    """To the person at the terminal, and to the one who reads the log later."""
    say(words)
    log.write(f"{words}\n".encode())
    log.flush()


@contextmanager
def _locked_log(job_dir: Path, node: Node, ranks: range) -> Iterator[IO[bytes]]:
    """The job's log, open for appending and locked. Every process of the engine has it as its stdout, and
    with it the lock (or a log of its own, which it holds): nobody may start here while one of them is still
    saving, whatever became of us."""
    with node_log(job_dir, node.rank).open("ab") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{job_dir.name}: another run is at work on this; waiting for its result")
            fcntl.flock(log, fcntl.LOCK_EX)
        wait_for_earlier(job_dir, ranks)
        yield log


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """While an engine runs, SIGTERM unwinds the stack like Ctrl-C does, so that the engine is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers; the engine still ends with us, by its stdin
        return

    def leave(signum: int, frame: FrameType | None) -> None:
        raise Terminated(signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
