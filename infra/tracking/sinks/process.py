"""The process that delivers an execution to a tracker, as seen by the process that works on the execution."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from baton import SEARCH_PATH
from baton.infra.commands import command
from baton.infra.paths import baton_home
from baton.infra.process.logs import end_of
from baton.infra.process.process_group import start_group, stop_group
from baton.infra.progress import say
from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.spool import delivered_mark

PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0  # before a failed process is started again
SHOWN_CHARACTERS = 300  # of what a failed process has printed last
CHECK_S = 0.2


def start_delivery(tracker: str, log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start `python -m baton.infra.tracking.sinks TRACKER ARGUMENTS`, with its output in a file."""
    path = os.pathsep.join(filter(None, [*SEARCH_PATH, os.environ.get("PYTHONPATH")]))
    words = [sys.executable, "-P", "-m", __package__, tracker, *arguments]
    with log.open("wb") as output:
        return start_group(words, output, os.environ | {"PYTHONPATH": path, "BATON_HOME": str(baton_home())})


def reason_of(log: Path) -> str:
    """The last line that a failed process has printed, without secrets."""
    lines = redact_text(end_of(log).decode(errors="replace")).strip().splitlines()
    return lines[-1][-SHOWN_CHARACTERS:] if lines else "it has printed nothing"


class DeliveryProcess:
    """Keeps the process of a tracker running in a thread, until the execution ends. The thread is a daemon, so it never
    delays the exit of its process; only `finish` waits for it."""

    def __init__(self, tracker: str, execution: Path) -> None:
        self.tracker, self.execution = tracker, execution
        self.log = execution / f"{tracker}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._failure = "it has not ended in time"
        self._thread = threading.Thread(target=self._work, name=f"tracking-{tracker}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let the process send the rest and end."""
        self._ending.set()

    def finish(self, patience_s: float) -> bool:
        """Wait until the process has sent the rest, and stop it after `patience_s`. Returns whether it has sent all."""
        self.end()
        self._thread.join(patience_s)
        if self._thread.is_alive() and self._process is not None:
            stop_group(self._process)
        is_delivered = not self._failure or (self.execution / delivered_mark(self.tracker)).exists()
        if not is_delivered:
            retry = f"the next run that names it or `{command('baton tracking sync')}` delivers them"
            say(f"tracking: {self.tracker} lacks some records ({self._failure}); {retry}")
        return is_delivered

    def _work(self) -> None:
        pause_s, reported = PAUSE_S, False
        while True:
            self._failure = self._run()
            if not self._failure:
                return
            if not reported and not self._ending.is_set():
                why = f"{self._failure} ({self.log})"
                say(f"tracking: the run continues, and {self.tracker} gets its records later: {why}")
                reported = True
            if self._ending.wait(pause_s):
                return
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _run(self) -> str:
        """Run the process until it ends. Returns the reason of a failure, or "" if it has sent everything."""
        try:
            self._process = start_delivery(self.tracker, self.log, "--watch", str(self.execution))
        except OSError as error:  # the disk is full, or too many processes run
            return str(error)
        while self._process.poll() is None:
            if self._ending.wait(CHECK_S) and self._process.stdin and not self._process.stdin.closed:
                self._process.stdin.close()
            time.sleep(CHECK_S if self._ending.is_set() else 0)
        return reason_of(self.log) if self._process.returncode else ""
