"""The folder in storage of a job in a pod, whose disk is lost with the pod.

    STORAGE/jobs/<job directory's name>/
        work/…/<digest>/   the job's newest complete checkpoints, each with its manifest, which is written last, and
                           with the logs up to that time in record/
        metrics.jsonl      and other logs, to follow the job
        killed-for-memory.json  a killed pod's message to its retry
        result.json        {"digest", "place"} of the artifact, if the job is done

The folder mirrors JOB_DIR and is named by the job's identity, so that any pod, execution or registration with the same
job finds it. That is why Flyte's intratask checkpoint (`current_context().checkpoint`, a path of one attempt) is not
used. Two pods may run the same job, since a pod that Flyte has given up may still run beside its retry. They never
write different content under the same name, and neither removes files that the other needs.
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

from baton.infra.pod import this_pod
from baton.infra.process.launch import EngineFailed, Terminated
from baton.infra.process.limits import MIB, memory_limit
from baton.infra.progress import say
from baton.infra.storage import buckets as storage
from baton.infra.storage.buckets import StorageError, storage_of
from baton.infra.storage.durable import make_folder, remove, rename
from baton.infra.tracking.execution import execution_id
from baton.infra.tracking.remote_run import JOB
from baton.tasks.core.manifest import ALL_AND_RECORD, MANIFEST, RECORD, ArtifactError, Manifest, read_manifest, verify
from baton.tasks.core.stored import (
    DAMAGED,
    check_sizes,
    download,
    is_complete,
    manifest_at,
    mark_damaged,
    send,
    send_sealed,
)

MAX_CHECKPOINTS = 2  # of a series; older ones are removed
POLL_S = 0.5  # interval of looking for a new checkpoint
RETRY_S = 60.0  # pause after a checkpoint that could not be sent
RECORD_S = 3.0  # part of the grace period that is reserved for recording how the stage ended
KILLED = "killed-for-memory.json"  # file in a job's folder
NUMBERED = re.compile(r"(.*?)(\d+)")
STORED = re.compile(r"(?P<name>work/.+)/(?P<digest>[0-9a-f]+)/(?P<file>[^/]+)")


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A complete directory in `work`, which is part of a numbered series or single."""

    series: str  # the path without the number
    number: int
    name: str  # path in the job's folder
    digest: str = ""  # name of the folder below it in storage


class _Removed(Exception):
    """Raised if another pod removed a checkpoint, since it has sent newer ones or has finished the job."""


def offsite(job_dir: Path) -> "Offsite | None":
    """Return a job's folder in storage, or None if the job's own folder persists: outside of pods and placed jobs, or
    in a home that is the storage."""
    if this_pod() is None and not (JOB in os.environ and "BATON_STORAGE" in os.environ):
        return None
    root = storage_of(None)
    return None if str(job_dir).startswith(f"{root}/") else Offsite(job_dir, root)


class Offsite:
    """One job's folder in storage."""

    def __init__(self, job_dir: Path, root: str) -> None:
        self.job_dir, self.storage, self.address = job_dir, root, f"{root}/jobs/{job_dir.name}"

    def result(self) -> tuple[str, Manifest] | None:
        """Return the place and the manifest of this job's artifact, if the job is finished and no file is missing."""
        try:
            done = json.loads(storage.read(f"{self.address}/result.json"))
        except FileNotFoundError:
            return None
        try:
            return done["place"], check_sizes(done["place"], done["digest"])
        except ArtifactError as error:
            say(f"{error}\nRecomputing it.")
            storage.delete(self.address, ["result.json"])
            return None

    def finish(self, digest: str) -> str:
        """Send the artifact, mark the job as done, delete its checkpoints, and return the artifact's address. Raises
        StorageError."""
        place = send(str(self.job_dir / "output"), self.storage)
        logs = [path.name for path in self.job_dir.glob("*.jsonl")]
        storage.put(self.job_dir, logs, self.address)
        storage.write(f"{self.address}/result.json", json.dumps({"digest": digest, "place": place}).encode())
        self._delete([name for name in storage.sizes(self.address) if name.startswith("work/")])
        return place

    # -- memory -----------------------------------------------------------------------------------

    def note_memory(self, message: str, limit: int) -> None:
        """Report to the retry of this pod that the engine was killed for memory: Flyte gets the reason from Kubernetes,
        ignores the error that this pod writes, and retries the pod with the same limit."""
        about = {"execution": execution_id(), "limit_mib": limit, "message": message}
        storage.write(f"{self.address}/{KILLED}", json.dumps(about).encode())

    def check_memory(self) -> None:
        """Raise EngineFailed if another pod of this execution was killed for memory at the limit of this one."""
        try:
            known = json.loads(storage.read(f"{self.address}/{KILLED}"))
        except FileNotFoundError:
            return
        limit = memory_limit()
        if known["execution"] == execution_id() and limit is not None and limit // MIB <= known["limit_mib"]:
            raise EngineFailed(known["message"], memory_mib=known["limit_mib"])

    # -- download ---------------------------------------------------------------------------------

    def resume(self) -> tuple[str, Manifest] | None:
        """Return the place and the manifest of this job's artifact, if the job is done. Otherwise, download the newest
        checkpoint of each series with its logs, and return None. Damaged checkpoints are skipped. Raises StorageError,
        and ArtifactError if all of a series are damaged, since a run with progress must not silently start over."""
        while (result := self.result()) is None:
            names = storage.sizes(self.address)
            complete, damaged = _stored(names, MANIFEST), _stored(names, DAMAGED)
            try:
                # Numbered checkpoints come last, since their logs are longer
                for _, series in sorted({(each.number >= 0, each.series) for each in complete + damaged}):
                    self._download_newest([checkpoint for checkpoint in complete if checkpoint.series == series])
            except _Removed:
                continue
            return None
        return result

    def _download_newest(self, series: list[Checkpoint]) -> None:
        for checkpoint in reversed(series):
            if any(local.series == checkpoint.series and local.number >= checkpoint.number for local in self._local()):
                return
            address, target = self._place(checkpoint), self.job_dir / checkpoint.name
            partial = self.job_dir / "downloading"
            remove(partial)
            try:
                download(address, manifest_at(address), partial, ALL_AND_RECORD)
                verify(partial)
            except ArtifactError as error:
                try:
                    mark_damaged(address)
                except FileNotFoundError:
                    raise _Removed from error
                say(f"{error} Trying the checkpoint before it.")
                continue
            for log in partial.glob(f"{RECORD}/*.jsonl"):
                rename(log, self.job_dir / log.name)
            remove(partial / RECORD)
            remove(target)
            make_folder(target.parent)
            rename(partial, target)
            say(f"continuing from {self.address}/{checkpoint.name}")
            return
        raise ArtifactError(
            f"{self.address}/work: every checkpoint is damaged. Restore one (rename its {DAMAGED} to {MANIFEST}), or "
            "delete that folder to start over at step 1"
        )

    def _place(self, checkpoint: Checkpoint) -> str:
        return f"{self.address}/{checkpoint.name}/{checkpoint.digest}"

    def _local(self) -> list[Checkpoint]:
        """Return the complete checkpoints on this machine."""
        walk = os.walk(self.job_dir / "work")  # skips folders that the engine removes meanwhile
        folders = [Path(folder).relative_to(self.job_dir) for folder, _, files in walk if MANIFEST in files]
        return sorted(_checkpoint(folder.as_posix()) for folder in folders)

    # -- upload -----------------------------------------------------------------------------------

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send complete checkpoints while an engine runs, one at a time, newest first. If the engine ends without a
        result, its last checkpoint is still sent; after SIGTERM, within the grace period."""
        ended, stop = threading.Event(), threading.Event()
        context = contextvars.copy_context()  # Flyte's context, which has the credentials
        sender = threading.Thread(target=context.run, args=(self._send_all, ended, stop), name="offsite", daemon=True)
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
            stop.set()  # the artifact itself is sent next
            ended.set()
            sender.join()
        finally:
            stop.set()

    def _send_all(self, ended: threading.Event, stop: threading.Event) -> None:
        sent: set[Checkpoint] = set()
        last, wait_s = False, POLL_S
        while not (last or stop.is_set()):
            last = ended.wait(wait_s)
            wait_s = POLL_S
            newest = {checkpoint.series: checkpoint for checkpoint in self._local()}
            for checkpoint in set(newest.values()) - sent:
                try:
                    if self._send(checkpoint, stop):
                        sent.add(checkpoint)
                except (StorageError, ArtifactError, OSError) as error:
                    say(f"{checkpoint.name} could not be sent to {self.address}: {error}")
                    wait_s = RETRY_S

    def _send(self, checkpoint: Checkpoint, stop: threading.Event) -> bool:
        """Send a checkpoint. Return False if the engine has removed it meanwhile, or `stop` was set."""
        snapshot = self._snapshot(checkpoint)
        if snapshot is None:
            return False
        address = self._place(replace(checkpoint, digest=read_manifest(snapshot).digest))
        if not is_complete(address):
            logs = [path.name for path in self.job_dir.glob("*.jsonl")]
            (snapshot / RECORD).mkdir(exist_ok=True)
            for name in logs:  # copied after the checkpoint, so that they have all of its steps
                shutil.copy(self.job_dir / name, snapshot / RECORD)
            storage.put(snapshot / RECORD, logs, self.address, stop)
            if not send_sealed(snapshot, address, {}, stop):
                return False
        remove(snapshot)
        if checkpoint.number >= 0:
            self._prune(checkpoint.series)
        return True

    def _snapshot(self, checkpoint: Checkpoint) -> Path | None:
        """Make hard links to a checkpoint, since the engine may remove it meanwhile. The manifest is linked last, since
        it is removed first: if it exists, so do the other files."""
        source, target = self.job_dir / checkpoint.name, self.job_dir / "sending"
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
        """Delete checkpoints, complete or not, that are older than the newest complete ones."""
        names = storage.sizes(self.address)
        complete = {checkpoint.number for checkpoint in _stored(names, MANIFEST) if checkpoint.series == series}
        number = re.compile(rf"{re.escape(series)}(\d+)/")
        oldest = min(sorted(complete)[-MAX_CHECKPOINTS:], default=0)  # 0 if another pod has finished and removed all
        self._delete([name for name in names if (match := number.match(name)) and int(match[1]) < oldest])

    def _delete(self, names: Iterable[str]) -> None:
        storage.delete(self.address, sorted(names, key=lambda name: not name.endswith(f"/{MANIFEST}")))


def _checkpoint(name: str, digest: str = "") -> Checkpoint:
    numbered = NUMBERED.fullmatch(name)
    series, number = (numbered[1], int(numbered[2])) if numbered else (name, -1)
    return Checkpoint(series, number, name, digest)


def _stored(names: Iterable[str], file: str) -> list[Checkpoint]:
    """Return the checkpoints in storage that have the file, the oldest of each series first."""
    matches = [match for match in map(STORED.fullmatch, names) if match and match["file"] == file]
    return sorted(_checkpoint(match["name"], match["digest"]) for match in matches)
