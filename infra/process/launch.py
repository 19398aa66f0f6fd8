"""Run an engine as its own process, alone or under torchrun; show its progress; return its artifact directory or raise
an error that the user can act on.

The job directory's name is derived from the stage, its version, its spec and its inputs' digests. The same job always
gets the same directory, so a killed stage continues from its last complete checkpoint, and a second copy started at the
same time waits for the first and uses its result.

When a rank dies or hangs, the whole engine is stopped within a minute (infra/process/supervisor.py), the rank is named
(infra/process/failure_report.py), and if that may help, the engine is restarted from its checkpoint.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from blake3 import blake3

from baton import SEARCH_PATH
from baton.infra.errors import UserError
from baton.infra.paths import baton_home
from baton.infra.pod import this_pod
from baton.infra.process.death import Death
from baton.infra.process.failure_report import Failure, diagnose
from baton.infra.process.file_lock import lock
from baton.infra.process.limits import prefer_oom_kill
from baton.infra.process.logs import LogReader, node_log, wait_for_earlier
from baton.infra.process.peers import FirstNode, Peers
from baton.infra.process.process_group import start_group, stop_group
from baton.infra.process.supervisor import Supervisor, read_result
from baton.infra.process.torchrun_env import ADDRESS, Node, this_node
from baton.infra.progress import NOTICES, ProgressBar, say
from baton.infra.storage.buckets import is_bucket
from baton.infra.storage.durable import make_folder, write_json
from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.remote_run import JOB

STOP_GRACE = "BATON_STOP_GRACE_S"  # from SIGTERM to SIGKILL, if another program sends SIGKILL
STOP_GRACE_S = 60.0  # on this machine
POD_GRACE_S = 30.0  # Kubernetes' default
SENDING_SHARE = 1 / 3  # of the grace where a disk is lost with the job, reserved for uploading the last checkpoint
POLL_S = 0.2
# OpenMP threads that spin while waiting keep the cores from other processes: beside one other busy process, vLLM on two
# cores ran 20 times slower with libgomp's default than with this value.
SHORT_WAITS = {"GOMP_SPINCOUNT": "1000"}


class Terminated(SystemExit):
    """SIGTERM was received. SIGKILL follows at `deadline` (time.monotonic)."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.deadline = time.monotonic() + stop_grace_s()


_killed_at: float | None = None  # when SIGKILL follows the SIGTERM that this process has received


def grace_left_s() -> float | None:
    """Return the seconds until SIGKILL, or None if no SIGTERM was received."""
    return None if _killed_at is None else max(0.0, _killed_at - time.monotonic())


def stop_grace_s() -> float:
    """Return the seconds from SIGTERM to SIGKILL, to write a checkpoint and, in a pod, upload it. Raises UserError."""
    given = os.environ.get(STOP_GRACE)
    if not given:
        return POD_GRACE_S if this_pod() else STOP_GRACE_S
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", given):  # float() accepts nan too, which never elapses
        raise UserError(f"{STOP_GRACE}={given}: seconds from SIGTERM to SIGKILL, such as 60")
    return float(given)


def engine_grace_s() -> float:
    """Return the engine's share of the time from SIGTERM to SIGKILL."""
    loses_disk = this_pod() or (JOB in os.environ and is_bucket(os.environ.get("BATON_STORAGE", "")))
    return stop_grace_s() * (1 - SENDING_SHARE if loses_disk else 1)


class EngineFailed(UserError):
    """An engine ended without a result; the message has its last lines and its folder. `curable`: a retry, perhaps on
    another machine, may help. `memory_mib`: the limit at which it was killed for memory. `death`: how it ended, for a
    retry to compare its own end with."""

    def __init__(
        self, message: str, curable: bool = False, memory_mib: int | None = None, death: Death | None = None
    ) -> None:
        super().__init__(message)
        self.curable, self.memory_mib, self.death = curable, memory_mib, death


@dataclass(frozen=True)
class Engine:
    """A stage's program. `version` is part of every job's identity and cache key: raise it when the same spec and
    inputs would give another result. `helper` is the module that additional machines run, for engines that support
    them. An engine that `repeats` runs in a finished job too: its result is also outside of the job's folder, such as
    in a registry, and it keeps the existing output."""

    stage: str
    module: str
    version: str
    helper: str = ""
    repeats: bool = False

    def command(self, job_dir: Path, processes: int | None, node: Node) -> list[str]:
        """`python -m module JOB_DIR`, under torchrun when a number of processes is given."""
        arguments = ["-m", self.module, str(job_dir)]
        if processes is None:
            return [sys.executable, *arguments]
        # torchrun gives up just before the launcher does
        timeout_s = max(1, int(engine_grace_s()) - 5)
        options = ["--nproc-per-node", str(processes), "--shutdown-timeout", str(timeout_s)]
        return [sys.executable, "-m", "torch.distributed.run", *node.torchrun(), *options, *arguments]

    def helper_command(self, job_dir: Path) -> list[str]:
        return [sys.executable, "-m", self.helper, str(job_dir)]


@dataclass(frozen=True)
class Launch:
    """The processes of an engine, and when they are started again: arguments of `run_engine`."""

    processes: int | None = None  # started by torchrun on each machine; None: one, without torchrun
    nodes: int = 1  # machines
    helpers: int = 0  # machines beside these, which run the engine's helper
    max_restarts: int = 0
    hang_timeout_s: float | None = None


def job_directory(engine: Engine, spec: dict[str, Any], digests: dict[str, str]) -> Path:
    """Return a job's folder, identified by what the job computes and never by where it runs."""
    module = engine.module.removeprefix("baton.")  # so that results of versions without the namespace are found
    identity = json.dumps([engine.stage, module, engine.version, spec, digests], sort_keys=True)
    return baton_home() / "jobs" / f"{engine.stage}-{blake3(identity.encode()).hexdigest()[:16]}"


def is_finished(job_dir: Path) -> bool:
    """Return whether JOB_DIR/output has the job's result."""
    return "digest" in read_result(job_dir) and (job_dir / "output" / "manifest.json").exists()


def run_engine(
    engine: Engine,
    job_dir: Path,
    request: dict[str, Any],
    *,
    title: str,
    processes: int | None = None,
    nodes: int = 1,
    helpers: int = 0,
    max_restarts: int = 0,
    hang_timeout_s: float | None = None,
    died: Death | None = None,
    share_folder: bool = True,
) -> Path:
    """Run an engine and return JOB_DIR/output; immediately if it is already finished and the engine does not repeat.

    `request` becomes spec.json. `title` is shown in the terminal. `processes`: on each of `nodes` machines. This is one
    of them, or of the `helpers` that come after them and run the engine's helper. `max_restarts` is for engines that
    write checkpoints and heartbeats (infra/process/heartbeat.py); one without a heartbeat for `hang_timeout_s` counts
    as hung (None: never). An engine that ends in the same way at the same step as an earlier start, or as `died` in
    another pod, is not started again. Nodes that do not `share_folder` have a folder each, and the output is in the
    first node's; none of them restarts its engine, since all have to be started together. Raises EngineFailed,
    NotPlaced; KeyboardInterrupt and SystemExit (on SIGTERM) pass through after the engine has stopped.
    """
    node = this_node(nodes, helpers)
    ranks, environment = node.ranks(processes), {ADDRESS: node.address}
    at_work = replace(node, nodes=nodes)  # without the helpers
    command, others = engine.command(job_dir, processes, at_work), at_work.others(processes)
    if node.rank >= nodes:
        ranks, command, others = ranks[:1], engine.helper_command(job_dir), []
        environment |= {"RANK": f"{ranks[0]}", "LOCAL_RANK": "0", "WORLD_SIZE": f"{ranks[0] + 1}"}
    own_folders = nodes > 1 and not share_folder
    if own_folders:
        max_restarts = 0
    make_folder(job_dir)
    with _locked_log(job_dir, node, ranks) as log, sigterm_as_exit():
        if is_finished(job_dir) and not engine.repeats:
            return job_dir / "output"
        deaths = [died] if died else []
        for restart in range(max_restarts + 1):
            if node.rank == 0 or own_folders:
                for earlier in ("result.json", NOTICES):
                    (job_dir / earlier).unlink(missing_ok=True)
                write_json(job_dir / "spec.json", request)
            peers = FirstNode(node.address, node.port) if own_folders and node.rank else Peers(job_dir, others)
            supervisor, logs = Supervisor(job_dir, ranks, hang_timeout_s, peers), LogReader(job_dir, node.rank, ranks)
            if restart and (rank := peers.wait_until_stopped()) is not None:
                raise EngineFailed(f"{title}: rank {rank} did not stop; its machine may be lost", curable=True)
            returncode = _run(command, job_dir, title, log, supervisor, environment)
            if _succeeded(returncode, job_dir, peers):
                return job_dir / "output"
            end = diagnose(title, job_dir, returncode, supervisor, logs)
            repeated = end.death in deaths
            if repeated or restart == max_restarts or not (end.curable and supervisor.progressed):
                is_bug = "traceback" in read_result(job_dir) and not supervisor.progressed
                message = f"{end.summary}{_tries(end, deaths, restart, max_restarts)}{end.details}"
                if this_pod():
                    say(f"{title}: the end of its log:\n{redact_text(logs.torchrun_log())}")
                curable = end.curable and not is_bug and not repeated
                raise EngineFailed(message, curable, end.memory_mib, end.death)
            which = f"restart {restart + 1} of {max_restarts}{_compared(end, deaths)}"
            _log(log, f"{end.summary}; starting again from the newest checkpoint, {which}")
            deaths += [end.death] if end.death else []
    raise AssertionError("the last start returns or raises")


def _run(
    command: list[str], job_dir: Path, title: str, log: IO[bytes], supervisor: Supervisor, variables: dict[str, str]
) -> int:
    """Start the engine in its own session, with these environment `variables`, and supervise it until it ends; returns
    its exit code."""
    grace_s = engine_grace_s()
    environment = SHORT_WAITS | os.environ | _module_path() | variables
    environment |= {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "true"}
    (job_dir / "progress.json").unlink(missing_ok=True)
    process = start_group(command, log, environment)
    prefer_oom_kill(process.pid)
    bar = ProgressBar(title, job_dir)
    try:
        while supervisor.look():
            try:
                return process.wait(timeout=POLL_S)
            except subprocess.TimeoutExpired:
                bar.update()
        grace_s = 0.0  # a hung rank can't checkpoint
    except (KeyboardInterrupt, SystemExit):
        say(f"{title}: stopping; the same command continues from its last checkpoint")
        raise
    finally:
        _stop(process, supervisor, grace_s)
        bar.close(_succeeded(process.returncode, job_dir, supervisor.peers))
    return process.returncode


def _succeeded(returncode: int, job_dir: Path, peers: Peers) -> bool:
    return returncode == 0 and (is_finished(job_dir) or isinstance(peers, FirstNode))  # the first node has the result


def _module_path() -> dict[str, str]:
    """Let an engine import Baton's modules in any working directory, and none from the working directory itself."""
    paths = [*SEARCH_PATH, os.environ.get("PYTHONPATH")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONSAFEPATH": "1"}


def _stop(process: subprocess.Popen[bytes], supervisor: Supervisor, grace_s: float) -> None:
    """Stop every process of the engine: SIGTERM, then SIGKILL after the grace period, or at once if it is 0 or
    interrupted. The end of its stdin ends ranks that have not reported their pid yet."""
    try:
        stop_group(process, grace_s)
    finally:
        supervisor.kill_ranks()


def _tries(end: Failure, deaths: Sequence[Death], restarts: int, max_restarts: int) -> str:
    """Explain why an engine with `max_restarts` is not restarted (again)."""
    after = f"after {restarts} restart{'s' if restarts > 1 else ''}" if restarts else ""
    if not after and max_restarts and end.curable and not (deaths and end.death):
        after = "not restarted: it had not completed a step"
    reason = f"{after}{_compared(end, deaths)}".removeprefix("; ")
    return f" ({reason})" if reason else ""


def _compared(end: Failure, deaths: Sequence[Death]) -> str:
    """Compare an engine's end with those of earlier starts, in words; empty if there were none."""
    if not deaths or not end.death:
        return ""
    if end.death in deaths:
        return f"; the second failure of this kind at step {end.death.step}, so it is not started a third time"
    return f"; the previous start ended differently: {deaths[-1].summary}"


def _log(log: IO[bytes], message: str) -> None:
    """Print to the terminal and append to the log."""
    say(message)
    log.write(f"{message}\n".encode())
    log.flush()


@contextmanager
def _locked_log(job_dir: Path, node: Node, ranks: range) -> Iterator[IO[bytes]]:
    """Open the job's log for appending and lock it. Every process of the engine has the log as its stdout, and with it
    the lock (or its own locked log): no second engine can start while one of them is still saving, even if the launcher
    is gone."""
    with node_log(job_dir, node.rank).open("ab") as log:
        lock(log, f"{job_dir.name}: another run is working on this; waiting for its result")
        wait_for_earlier(job_dir, ranks)
        yield log


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Raise Terminated on SIGTERM, so that the stack unwinds as on Ctrl-C and the engine is stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers; the engine still ends with this process, by its stdin
        return

    def leave(signum: int, frame: FrameType | None) -> None:
        global _killed_at  # noqa: PLW0603 - a signal is for the process
        terminated = Terminated(signum)
        _killed_at = terminated.deadline
        raise terminated

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
