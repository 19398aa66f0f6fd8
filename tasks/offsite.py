"""A job's folder in storage, for a job in a pod: the pod's own disk goes with it.

    STORAGE/jobs/<job directory's name>/
        work/…/<digest>/   its newest complete checkpoints, each with its manifest, which is written last, and in
                           record/ the logs up to then
        metrics.jsonl      and its other logs, for whoever watches it
        result.json        {"digest", "place"}: the job is done, and this is its artifact

It mirrors JOB_DIR, and goes by the job's identity: whichever pod, execution or registration does the same job finds
it. That is why Flyte's intratask checkpoint (`current_context().checkpoint`, a path of one attempt) is not used.
Two pods may be at the same job: one that Flyte has given up still runs beside its retry. They never write different
content to the same name, and what one removes the other does not need.
"""

import contextvars
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from infra.durable import make_folder, rename
from infra.launch import Terminated
from infra.placement import storage
from infra.placement.storage import StorageError, storage_of
from infra.pod import this_pod
from infra.progress import say
from infra.tracking.placed import JOB
from tasks.manifest import MANIFEST, RECORD, ArtifactError, Manifest, read_manifest, remove, verify
from tasks.stored import DAMAGED, disbelieve, download, is_complete, look_at, manifest_at, send, send_sealed

KEEP = 2  # checkpoints of a series
LOOK_S = 0.5  # between two looks for a new one,
AGAIN_S = 60.0  # and after one that could not be sent
RECORD_S = 3.0  # of the grace, left for the record of how the stage ended
NUMBERED = re.compile(r"(.*?)(\d+)")
STORED = re.compile(r"(?P<name>work/.+)/(?P<digest>[0-9a-f]+)/(?P<file>[^/]+)")


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A complete directory in `work`: one of a numbered series, or alone."""

    series: str  # its path without the number
    number: int
    name: str  # its path in the job's folder
    digest: str = ""  # in storage: the folder in it


class _Removed(Exception):
    """Another pod has removed a checkpoint: it has sent newer ones, or has finished the job."""


def offsite(job_dir: Path) -> "Offsite | None":
    """None where the folder itself stays: outside of pods and of jobs that reach the storage by its address alone, and
    in a home that is the storage."""
    if this_pod() is None and not (JOB in os.environ and "BATON_STORAGE" in os.environ):
        return None
    where = storage_of(None)
    return None if str(job_dir).startswith(f"{where}/") else Offsite(job_dir, where)


class Offsite:
    """One job's."""

    def __init__(self, job_dir: Path, where: str) -> None:
        self.here, self.storage, self.there = job_dir, where, f"{where}/jobs/{job_dir.name}"

    def result(self) -> tuple[str, Manifest] | None:
        """The place and the manifest of what this job has made, if it is done and that is all there."""
        try:
            done = json.loads(storage.read(f"{self.there}/result.json"))
        except FileNotFoundError:
            return None
        try:
            return done["place"], look_at(done["place"], done["digest"])
        except ArtifactError as error:
            say(f"{error}\nMaking it again.")
            storage.delete(self.there, ["result.json"])
            return None

    def finish(self, digest: str) -> str:
        """Send the artifact, then say that the job is done; returns where the artifact is. The checkpoints are then
        of no more use. Raises StorageError."""
        place = send(str(self.here / "output"), digest, self.storage)
        logs = [path.name for path in self.here.glob("*.jsonl")]
        storage.put(self.here, logs, self.there)
        storage.write(f"{self.there}/result.json", json.dumps({"digest": digest, "place": place}).encode())
        self._delete([name for name in storage.sizes(self.there) if name.startswith("work/")])
        return place

    # -- checkpoints come back -------------------------------------------------------------------

    def resume(self) -> tuple[str, Manifest] | None:
        """The place and the manifest of what this job has made, if it is done; else the newest checkpoint of each
        series comes here, with the logs. A damaged one is passed over for the one before it. Raises ArtifactError
        when all of a series are damaged, since a run never starts anew by itself where there was something to
        continue; StorageError."""
        while (found := self.result()) is None:
            names = storage.sizes(self.there)
            complete, damaged = _stored(names, MANIFEST), _stored(names, DAMAGED)
            try:
                # the numbered ones last: their logs are the longer ones
                for _, series in sorted({(each.number >= 0, each.series) for each in complete + damaged}):
                    self._bring_newest([each for each in complete if each.series == series])
            except _Removed:
                continue
            return None
        return found

    def _bring_newest(self, found: list[Checkpoint]) -> None:
        for each in reversed(found):
            if any(here.series == each.series and here.number >= each.number for here in self._here()):
                return
            there, target, partial = self._place(each), self.here / each.name, self.here / "bringing"
            remove(partial)
            try:
                download(there, manifest_at(there), partial)
                verify(partial)
            except ArtifactError as error:
                try:
                    disbelieve(there)
                except FileNotFoundError:
                    raise _Removed from error
                say(f"{error} Trying the checkpoint before it.")
                continue
            for log in partial.glob(f"{RECORD}/*.jsonl"):
                rename(log, self.here / log.name)
            remove(partial / RECORD)
            remove(target)
            make_folder(target.parent)
            rename(partial, target)
            say(f"continuing from {self.there}/{each.name}")
            return
        raise ArtifactError(
            f"{self.there}/work: every checkpoint is damaged. Bring one back (with its {DAMAGED} as {MANIFEST}), or "
            "delete that folder: then the run begins at step 1"
        )

    def _place(self, checkpoint: Checkpoint) -> str:
        return f"{self.there}/{checkpoint.name}/{checkpoint.digest}"

    def _here(self) -> list[Checkpoint]:
        """The complete ones on this machine."""
        walk = os.walk(self.here / "work")  # passes over what the engine removes meanwhile
        folders = [Path(folder).relative_to(self.here) for folder, _, files in walk if MANIFEST in files]
        return sorted(_checkpoint(folder.as_posix()) for folder in folders)

    # -- checkpoints are sent --------------------------------------------------------------------

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send complete checkpoints while an engine runs, one at a time, the newest first. An engine that ends without
        a result has its last one sent; after SIGTERM, within the grace."""
        ended, stop = threading.Event(), threading.Event()
        flyte_s = contextvars.copy_context()  # its credentials
        sender = threading.Thread(target=flyte_s.run, args=(self._send_all, ended, stop), name="offsite", daemon=True)
        sender.start()
        try:
            yield
        except Terminated as end:
            ended.set()
            sender.join(max(0.0, end.deadline - RECORD_S - time.monotonic()))
            raise
        except BaseException:
            ended.set()
            sender.join()
            raise
        else:
            stop.set()  # the artifact itself is next
            ended.set()
            sender.join()
        finally:
            stop.set()

    def _send_all(self, ended: threading.Event, stop: threading.Event) -> None:
        sent: set[Checkpoint] = set()
        last, wait_s = False, LOOK_S
        while not (last or stop.is_set()):
            last = ended.wait(wait_s)
            wait_s = LOOK_S
            newest = {each.series: each for each in self._here()}
            for checkpoint in set(newest.values()) - sent:
                try:
                    if self._send(checkpoint, stop):
                        sent.add(checkpoint)
                except (StorageError, ArtifactError, OSError) as error:
                    say(f"{checkpoint.name} could not be sent to {self.there}: {error}")
                    wait_s = AGAIN_S

    def _send(self, checkpoint: Checkpoint, stop: threading.Event) -> bool:
        """False: it is not there; the engine has removed it since, or it was stopped."""
        snapshot = self._snapshot(checkpoint)
        if snapshot is None:
            return False
        there = self._place(replace(checkpoint, digest=read_manifest(snapshot).digest))
        if not is_complete(there):
            logs = [path.name for path in self.here.glob("*.jsonl")]
            (snapshot / RECORD).mkdir(exist_ok=True)
            for name in logs:  # later than the checkpoint: they have all of its steps
                shutil.copy(self.here / name, snapshot / RECORD)
            storage.put(snapshot / RECORD, logs, self.there, stop)
            if not send_sealed(snapshot, there, {}, stop):
                return False
        remove(snapshot)
        if checkpoint.number >= 0:
            self._prune(checkpoint.series)
        return True

    def _snapshot(self, checkpoint: Checkpoint) -> Path | None:
        """Hard links: the engine may remove its own meanwhile. The manifest is linked last, since it is removed
        first: with it, all is there."""
        source, target = self.here / checkpoint.name, self.here / "sending"
        remove(target)
        try:
            shutil.copytree(source, target, copy_function=os.link, ignore=lambda *_: [MANIFEST])
            os.link(source / MANIFEST, target / MANIFEST)
        except (OSError, shutil.Error):
            if (source / MANIFEST).exists():
                raise
            return None
        return target

    def _prune(self, series: str) -> None:
        """Whatever is older than the newest complete ones, complete or not."""
        names = storage.sizes(self.there)
        complete = sorted({each.number for each in _stored(names, MANIFEST) if each.series == series})[-KEEP:]
        number = re.compile(rf"{re.escape(series)}(\d+)/")
        oldest = min(complete, default=0)  # none: another pod has finished, and removed them
        self._delete([name for name in names if (found := number.match(name)) and int(found[1]) < oldest])

    def _delete(self, names: Iterable[str]) -> None:
        storage.delete(self.there, sorted(names, key=lambda name: not name.endswith(f"/{MANIFEST}")))


def _checkpoint(name: str, digest: str = "") -> Checkpoint:
    numbered = NUMBERED.fullmatch(name)
    series, number = (numbered[1], int(numbered[2])) if numbered else (name, -1)
    return Checkpoint(series, number, name, digest)


def _stored(names: Iterable[str], file: str) -> list[Checkpoint]:
    """Those in storage that have the file, of each series the oldest first."""
    found = [match for match in map(STORED.fullmatch, names) if match and match["file"] == file]
    return sorted(_checkpoint(match["name"], match["digest"]) for match in found)
