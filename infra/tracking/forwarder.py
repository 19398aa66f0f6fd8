"""The thread that carries the spool to MLflow while a run goes on."""

import concurrent.futures.thread  # noqa: F401 - MLflow imports it, which fails once a process has begun to end
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from infra.progress import say
from infra.tracking.placed import own_place
from infra.tracking.spool import RecordDamaged, beat, executions, is_delivered, settle
from infra.tracking.store import PushFailed, passed_on, prepare_client, shown_uri

START_S = 0.3  # lets the caller get on with its work before MLflow is imported
PERIOD_S = 2.0
LONGEST_PERIOD_S = 60.0  # between attempts while the store is away
AGAIN_S = 1.0  # before another attempt, for those who persist
SAID_AFTER_S = 2.0  # of waiting at the end of a run


class Forwarder:
    """Pushes one execution again and again, and what earlier ones left behind. A daemon: it never
    keeps a process from ending, and `flush` is the only call that waits for it."""

    def __init__(self, execution: Path) -> None:
        self.execution = execution
        self._wake = threading.Event()
        self._passes = threading.Condition()
        self._begun = self._ended = 0  # passes over the execution
        self._complete = False  # whether the last pass left nothing behind, of earlier executions either
        self._progressed = time.monotonic()  # when the last record was sent
        self._away = False
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is something new: push it soon."""
        self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that is spooled now is pushed, an attempt fails, or the time is up.
        Returns whether it is all pushed."""
        deadline = time.monotonic() + timeout_s
        return self._wait(lambda: self._complete, lambda: time.monotonic() < deadline)

    def finish(self, patience_s: float, stall_s: float, persist: bool = False) -> bool:
        """Wait until this execution alone is pushed, for `patience_s` and as long as a record was sent in the last
        `stall_s`; `persist`: also while the store is away. Returns whether it is."""
        started = time.monotonic()
        told = False

        def patient() -> bool:
            nonlocal told
            now = time.monotonic()
            if not told and now - started > SAID_AFTER_S:
                told = True
                say(f"tracking: sending the run's records to {shown_uri()}; Ctrl-C leaves them to the next run")
            return now - started < patience_s or now - max(started, self._progressed) < stall_s

        return self._wait(lambda: not self._away, patient, persist)

    def _wait(self, done: Callable[[], bool], patient: Callable[[], bool], persist: bool = False) -> bool:
        with self._passes:
            wanted = self._begun + 1
            self._wake.set()
            while self._thread.is_alive() and patient():
                self._passes.wait(0.2)
                if self._ended >= wanted and (done() or (self._away and not persist)):
                    return done()
                if persist and self._ended >= wanted:
                    wanted = self._begun + 1
                    self._passes.wait(AGAIN_S)
                    self._wake.set()
        return False

    def stop(self) -> None:
        """Ask the thread to end after the pass it is in; an idle one ends now."""
        self._stopping = True
        self._wake.set()
        self._thread.join(0.1)

    def _work(self) -> None:
        self._wake.wait(START_S)
        if own_place() and not passed_on():
            return  # whoever sent this stage here has the store, and delivers what is spooled
        prepare_client()
        with flyte_s_import_lock():
            from infra.tracking.push import push_execution  # imports MLflow
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
                self._is_back()
            except (PushFailed, RecordDamaged) as error:
                period = min(2 * period, LONGEST_PERIOD_S)
                self._is_away(error)
            if left_over and not self._away:
                _push_left_over(left_over.pop(0), push_execution)
            with self._passes:
                self._ended = self._begun
                self._complete = not self._away and not left_over
                self._passes.notify_all()
            self._rest(0 if left_over and not self._away else period)

    def _rest(self, period: float) -> None:
        """Until it is time for the next pass, or there is something new. The execution's signs of life go on."""
        until = time.monotonic() + period
        while True:
            beat(self.execution)
            left = until - time.monotonic()
            if left <= 0 or self._wake.wait(min(left, PERIOD_S)):
                return

    def _progress(self) -> None:
        self._progressed = time.monotonic()
        beat(self.execution)

    def _is_away(self, error: PushFailed | RecordDamaged) -> None:
        if not self._away:
            waiting = f"the run goes on, and its records wait in {self.execution.parent}"
            say(f"tracking: {waiting}. {shown_uri()}: {error}")
        self._away = True

    def _is_back(self) -> None:
        if self._away:
            say(f"tracking: {shown_uri()} answers again")
        self._away = False


def flyte_s_import_lock() -> AbstractContextManager[object]:
    """flytekit leaves pandas and pyarrow half-imported until they are used, and looks at them whenever it
    converts a value. MLflow uses them: were they loaded by this thread at that moment, the conversion
    would find them without their classes (importlib's LazyLoader has no lock before Python 3.12). Whoever
    imports MLflow beside this thread takes it as well: two imports of it at once end in half of it."""
    flyte = sys.modules.get("flytekit.core.type_engine")
    lock: AbstractContextManager[object] = flyte.TypeEngine.lazy_import_lock if flyte else nullcontext()
    return lock


def _push_left_over(execution: Path, push: Callable[[Path], bool]) -> None:
    """Deliver what an earlier run could not, unless it is still at work and does so itself."""
    try:
        if settle(execution):
            push(execution)
    except (PushFailed, RecordDamaged, OSError) as error:
        say(f"tracking: execution {execution.name}: {error}. `python -m infra.tracking sync` tries again")
