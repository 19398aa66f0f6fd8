"""Mirror a running job's record, metrics, progress and log on the machine that started it.

A job whose home is the storage itself, a folder that the machines share, needs none of this. Another job sends them to

    STORAGE/executions/<execution>/<job>/<stage>/run.json      its record, named by the stage's folder in the spool
    STORAGE/jobs/<job directory's name>/                       see FILES; its checkpoints are there too (offsite.py)

whenever they have changed (`sending`), and the machine that started the job fetches them from there (`Mirror`).
"""

import contextvars
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from baton.infra.paths import baton_home
from baton.infra.process.launch import Terminated
from baton.infra.progress import NOTICES, say
from baton.infra.storage import buckets
from baton.infra.storage.buckets import StorageError, is_bucket, storage_of, with_retries
from baton.infra.storage.durable import replacement
from baton.infra.tracking.execution import execution_id
from baton.infra.tracking.redact import hide_keys, redact_lines
from baton.infra.tracking.remote_run import JOB, stages_of
from baton.infra.tracking.spool import (
    FINISHED,
    StageRun,
    execution_folder,
    read_stage,
    stage_folder,
    stage_folders,
    write_stage,
)

METRICS, PROGRESS, LOG = "metrics.jsonl", "progress.json", "log.txt"
FILES = (METRICS, PROGRESS, NOTICES, LOG)
EVERY_S = 4.0  # between two looks for changes
BYTES_PER_S = 1e6  # a large file is sent less often, so that it uses no more than this on average
RETRY_S = 30.0  # after the storage could not be reached
LAST_S, LAST_BEFORE_KILL_S = 60.0, 0.5  # for the last transfer; left before SIGKILL


# -- on the job's machine ------------------------------------------------------------------------


@contextmanager
def sending() -> Iterator[None]:
    """Send the job's record, metrics, progress and log while the body runs, and once more at its end. Slow or
    unreachable storage delays the end by at most a minute, and never stops the stage."""
    storage = storage_of(None)
    if f"{baton_home()}/".startswith(f"{storage}/") or os.environ["NODE_RANK"] != "0":
        yield
        return
    ended, stop = threading.Event(), threading.Event()
    context = contextvars.copy_context()  # Flyte's: it has the credentials
    send = _Sender(storage, stop).run
    sender = threading.Thread(target=context.run, args=(send, ended), name="mirror", daemon=True)
    sender.start()
    patience_s = LAST_S
    try:
        yield
    except Terminated as end:
        patience_s = end.deadline - LAST_BEFORE_KILL_S - time.monotonic()
        raise
    finally:
        ended.set()
        sender.join(max(0.0, patience_s))
        stop.set()  # Python waits for the threads of an upload when it exits


class _Sender:
    def __init__(self, storage: str, stop: threading.Event) -> None:
        self.storage, self.stop = storage, stop
        self.execution = execution_folder(execution_id())
        self.copies = baton_home() / "sending"  # copies to send, since files may grow or be replaced meanwhile
        self.sent: dict[Path, tuple[int, ...]] = {}
        self.due: dict[Path, float] = {}
        self.logs: dict[Path, _RedactedCopy] = {}

    def run(self, ended: threading.Event) -> None:
        wait_s, reported, last = EVERY_S, False, False
        while not last:
            last = ended.wait(wait_s)
            wait_s = EVERY_S
            try:
                self._send_changed(last)
                reported = False
            except (StorageError, OSError) as error:
                wait_s = RETRY_S
                if not reported:
                    say(f"The stage continues, but its progress is not seen elsewhere: {error}")
                reported = True

    def _send_changed(self, last: bool) -> None:
        """Send the record last, so that the record of an ended stage has all of its metrics."""
        for folder in stage_folders(self.execution):
            run = read_stage(folder)
            if run.job_dir:
                job_dir = Path(run.job_dir)
                changed = [path for name in FILES if self._is_due(path := job_dir / name, last)]
                self._send(changed, f"{self.storage}/jobs/{job_dir.name}")
            record = [path] if self._is_due(path := folder / "run.json", last) else []
            self._send(record, f"{self.storage}/executions/{self.execution.name}/{os.environ[JOB]}/{folder.name}")

    def _is_due(self, path: Path, last: bool) -> bool:
        if _state(path) in (None, self.sent.get(path)):
            return False
        return last or time.monotonic() >= self.due.get(path, 0.0)

    def _send(self, paths: list[Path], place: str) -> None:
        if not paths:
            return
        states = {path: _state(path) for path in paths}
        folder = self.copies / paths[0].parent.name
        folder.mkdir(parents=True, exist_ok=True)
        there = [path.name for path in paths if self._copied(path, folder / path.name)]
        buckets.put(folder, there, place, self.stop)
        if self.stop.is_set():
            return
        for path, state in states.items():
            if state is not None:
                self.sent[path] = state
                self.due[path] = time.monotonic() + state[0] / BYTES_PER_S

    def _copied(self, path: Path, copy: Path) -> bool:
        """Copy a file; return False if the engine has removed it meanwhile."""
        try:
            if path.name == LOG:
                self.logs.setdefault(path, _RedactedCopy()).update(path, copy)
            else:
                shutil.copyfile(path, copy)
        except FileNotFoundError:
            return False
        return True


@dataclass
class _RedactedCopy:
    """A copy of a log, whose new complete lines are appended with their secrets hidden."""

    read: int = 0  # bytes
    of_key: int = 0  # see hide_keys

    def update(self, log: Path, copy: Path) -> None:
        with log.open("rb") as source, copy.open("ab" if self.read else "wb") as target:
            source.seek(self.read)
            new = source.read()
            new = new[: new.rfind(b"\n") + 1]
            shown, self.of_key = hide_keys(new.decode(errors="replace"), self.of_key)
            target.write(redact_lines(shown).encode())
            self.read += len(new)


def _state(path: Path) -> tuple[int, ...] | None:
    """A file's size, followed by other values that change with its content; None if there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


# -- on the machine that started it --------------------------------------------------------------


@dataclass
class Mirror:
    """Fetches new records and files of a job of this execution. Does nothing if both sides share a folder. `where`:
    SkyPilot's facts about the job, for its record."""

    storage: str
    execution: Path
    job: str
    where: dict[str, Any] = field(default_factory=dict)
    fetched: dict[str, object] = field(default_factory=dict)  # the storage's information about each file
    away: bool = False

    @contextmanager
    def following(self) -> Iterator["Mirror"]:
        """Fetch while the body runs, and once more at its end: slow or unreachable storage does not delay the body."""
        ended = threading.Event()
        context = contextvars.copy_context()  # Flyte's: it has the credentials
        thread = threading.Thread(target=context.run, args=(self._follow, ended), name="mirror", daemon=True)
        thread.start()
        try:
            yield self
            ended.set()
            thread.join(LAST_S)
        finally:
            ended.set()

    def _follow(self, ended: threading.Event) -> None:
        last = False
        while not last:
            last = ended.wait(EVERY_S)
            self.update()

    def update(self) -> None:
        """Fetch new records and files. If the storage cannot be read, the next call tries again."""
        if not is_bucket(self.storage):
            return
        try:
            with_retries(self._update, self.storage, patience_s=0.1)
            self.away = False
        except StorageError as error:
            if not self.away:
                say(f"the progress of {self.job} cannot be read; the job continues, and this retries: {error}")
            self.away = True

    def _update(self) -> None:
        files = buckets.file_system(self.storage)
        files.invalidate_cache()  # the job writes there
        try:
            paths = files.find(f"{self.storage}/executions/{self.execution.name}/{self.job}")
        except FileNotFoundError:
            return
        for path in (path for path in paths if path.endswith("/run.json")):
            run = StageRun(**json.loads(files.cat_file(path)))
            if run.job_dir:
                name = Path(run.job_dir).name
                run = replace(run, job_dir=str(baton_home() / "jobs" / name))
                for file in FILES:
                    self._fetch(files, f"{self.storage}/jobs/{name}/{file}", baton_home() / "jobs" / name / file)
            self._record(replace(run, placed=run.placed | self.where))

    def _fetch(self, files: Any, source: str, target: Path) -> None:
        try:
            info = files.info(source)
            if self.fetched.get(source) == info:
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            # a new file each time: a resumed engine rewrites its metrics, and a reader's offset would be wrong
            with replacement(target, synced=False) as partial:
                files.get_file(source, str(partial))
        except FileNotFoundError:
            return
        self.fetched[source] = info

    def _record(self, run: StageRun) -> None:
        """Write a stage's record. If an earlier machine of this job has finished the stage and was lost before it could
        record that, the next machine finds the artifact; the stage counts as made by the earlier one, not as cached."""
        known = next((known for _, known in stages_of(self.execution, self.job) if known.title == run.title), None)
        if run.cached and known and not known.cached:
            run = replace(
                known, status=FINISHED, ended=known.ended or run.ended, error=None, output=run.output, placed=run.placed
            )
        folder = stage_folder(self.execution, run.title, run.job_dir)
        if not (folder / "run.json").exists() or asdict(read_stage(folder)) != asdict(run):
            write_stage(folder, run)
