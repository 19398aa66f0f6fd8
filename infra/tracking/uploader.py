"""Upload the spool to MLflow in a thread while a run is in progress."""

import concurrent.futures.thread  # noqa: F401 - MLflow imports it, which fails once the process is exiting
import threading
import time
from collections.abc import Callable
from pathlib import Path

from baton.infra.commands import command
from baton.infra.flyte.hooks import import_lock
from baton.infra.pod import this_pod
from baton.infra.progress import say
from baton.infra.text import clause
from baton.infra.tracking.remote_run import remote_place
from baton.infra.tracking.spool import RecordDamaged, beat, close_if_idle, executions, is_delivered
from baton.infra.tracking.store import PushFailed, passed_on, prepare_client, shown_uri

START_S = 0.3  # delay before MLflow is imported, so that the caller can continue first
PERIOD_S = 2.0
LONGEST_PERIOD_S = 60.0  # time between attempts while the store is unreachable
RETRY_S = 1.0  # time before a retry with `persist`
REPORT_AFTER_S = 2.0  # waiting time at the end of a run before a message


class Uploader:
    """Uploads one execution periodically, and the undelivered records of earlier ones. Its thread is a daemon, so it
    never delays the process's exit; only `flush` and `finish` wait for it."""

    def __init__(self, execution: Path) -> None:
        self.execution = execution
        self._wake = threading.Event()
        self._passes = threading.Condition()
        self._begun = self._ended = 0  # passes over the execution
        self._complete = False  # whether everything is uploaded, earlier executions included
        self._progressed = time.monotonic()  # when the last record was sent
        self._unreachable = False
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Upload soon: there is something new."""
        self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything spooled now is uploaded, an attempt fails, or the time is up. Returns whether it is
        uploaded."""
        deadline = time.monotonic() + timeout_s
        return self._wait(lambda: self._complete, lambda: time.monotonic() < deadline)

    def finish(self, patience_s: float, stall_s: float, persist: bool = False) -> bool:
        """Wait until this execution is uploaded, for `patience_s` and as long as a record was sent in the last
        `stall_s`; `persist`: also while the store is unreachable. Returns whether it is uploaded."""
        started = time.monotonic()
        reported = False

        def patient() -> bool:
            nonlocal reported
            now = time.monotonic()
            if not reported and now - started > REPORT_AFTER_S:
                reported = True
                hint = "" if this_pod() else "; Ctrl-C leaves them to the next run"
                say(f"tracking: uploading the run's records to {shown_uri()}{hint}")
            return now - started < patience_s or now - max(started, self._progressed) < stall_s

        return self._wait(lambda: not self._unreachable, patient, persist)

    def _wait(self, done: Callable[[], bool], patient: Callable[[], bool], persist: bool = False) -> bool:
        with self._passes:
            expected = self._begun + 1
            self._wake.set()
            while self._thread.is_alive() and patient():
                self._passes.wait(0.2)
                if self._ended >= expected and (done() or (self._unreachable and not persist)):
                    return done()
                if persist and self._ended >= expected:
                    expected = self._begun + 1
                    self._passes.wait(RETRY_S)
                    self._wake.set()
        return False

    def stop(self) -> None:
        """End the thread after its current pass."""
        self._stopping = True
        self._wake.set()
        self._thread.join(0.1)

    def _work(self) -> None:
        self._wake.wait(START_S)
        if remote_place() and not passed_on():
            return  # the machine that started this job has the store, and delivers the spool
        prepare_client()
        with import_lock():
            from baton.infra.tracking.push import push_execution  # imports MLflow
        self._progress()

        left_over = [path for path in executions() if path != self.execution and not is_delivered(path)]
        period = PERIOD_S
        while not self._stopping:
            self._wake.clear()
            with self._passes:
                self._begun += 1
            try:
                push_execution(self.execution, progressed=self._progress)
                period = PERIOD_S
                self._report_recovery()
            except (PushFailed, RecordDamaged) as error:
                period = min(2 * period, LONGEST_PERIOD_S)
                self._report_outage(error)
            if left_over and not self._unreachable:
                _push_left_over(left_over.pop(0), push_execution)
            with self._passes:
                self._ended = self._begun
                self._complete = not self._unreachable and not left_over
                self._passes.notify_all()
            self._rest(0 if left_over and not self._unreachable else period)

    def _rest(self, period: float) -> None:
        """Wait for the next pass or for something new, while updating the execution's sign of life."""
        until = time.monotonic() + period
        while True:
            beat(self.execution)
            left = until - time.monotonic()
            if left <= 0 or self._wake.wait(min(left, PERIOD_S)):
                return

    def _progress(self) -> None:
        self._progressed = time.monotonic()
        beat(self.execution)

    def _report_outage(self, error: PushFailed | RecordDamaged) -> None:
        if not self._unreachable:
            kept = f"are kept in {self.execution.parent}"
            if this_pod():
                kept = "are on this pod's disk, and lost with it if the server does not answer before it ends"
            say(f"tracking: the run continues, and its records {kept}. {shown_uri()}: {error}")
        self._unreachable = True

    def _report_recovery(self) -> None:
        if self._unreachable:
            say(f"tracking: {shown_uri()} is reachable again")
        self._unreachable = False


def _push_left_over(execution: Path, push: Callable[[Path], bool]) -> None:
    """Deliver an earlier execution, unless it is still running and does so itself."""
    try:
        if close_if_idle(execution):
            push(execution)
    except (PushFailed, RecordDamaged, OSError) as error:
        retry = command("baton tracking sync")
        say(f"tracking: execution {execution.name}: {clause(error)}. `{retry}` tries again")
