"""A stage's job, seen from its engine.

An engine is a process, `python -m tasks.<stage>.<engine> JOB_DIR`, alone or under torchrun:

    JOB_DIR/spec.json       in:  {"stage", "kind", "spec", "inputs": {name: the fields of an Input}}
    JOB_DIR/output/         out: the artifact, sealed by its manifest
    JOB_DIR/work            a folder: what a resume needs (checkpoints in progress). In a pod, each folder in it that
                            has a manifest is sent to storage (tasks/core/offsite.py)
    JOB_DIR/metrics.jsonl   out: one object a line, {"step", "time", name: number, …}
    JOB_DIR/progress.json   out: progress, for the terminal's progress bar
    JOB_DIR/notices.jsonl   out: one object a line, {"text"}: what the user must know about the result
    JOB_DIR/result.json     out: {"digest"} or {"error", "kind"}, and "traceback" when it is a bug
    JOB_DIR/log.txt         stdout and stderr of the engine; of rank 0, if there are several: the others have
                            log-rank-<N>.txt

So a stage can be rerun by hand from its job directory.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from infra.errors import UserError
from infra.paths import quiet
from infra.process.heartbeat import Heartbeat
from infra.process.logs import end_of, print_to_own_log, redact_tracebacks
from infra.process.parent_watchdog import end_with_launcher
from infra.progress import NOTICES
from infra.storage.buckets import StorageError
from infra.storage.durable import make_folder, open_to_readers, remove, replacement, sync, write_json, write_text
from infra.text import escaped
from infra.tracking.redact import redact_spec, redact_text
from tasks.core.inputs import view
from tasks.core.manifest import ALL, RECORD, ArtifactError, verify, write_manifest
from tasks.core.spec import Spec
from tasks.core.stored import fetch

S = TypeVar("S", bound=Spec)

GRACE_S = 60.0  # time to save and exit for an engine whose launcher died


class StageError(Exception):
    """A stage cannot produce its artifact; the message says why and what to do. It may quote foreign text."""

    def __init__(self, message: str) -> None:
        super().__init__(escaped(message))


@dataclass(frozen=True)
class Input:
    """An artifact that a job is given."""

    digest: str
    path: str  # of its view on this machine (tasks/core/inputs.py); empty if it is fetched when it is needed
    place: str = ""  # valid on other machines too
    files: Sequence[str] = ALL  # patterns of those that the job needs; others may be missing
    implied: bool = False  # an ancestor of another input, and not recorded as a parent
    origin: str = ""  # the folder that the view has links to
    identity: str = ""

    def local(self) -> Path:
        """Its directory, fetched first if necessary, its files checked against the digest: by one process per machine,
        since the others read the same files and end with it. Raises ArtifactError, StorageError."""
        if not self.path:
            return fetch(self.place, self.digest, self.files)
        if os.environ.get("LOCAL_RANK", "0") == "0":
            verify(Path(self.path), self.digest, self.files, self.origin)
        return Path(self.path)


@dataclass(frozen=True)
class Job:
    """One engine's job directory."""

    directory: Path
    stage: str
    kind: str
    raw_spec: dict[str, Any]
    inputs: dict[str, dict[str, Any]]  # the fields of an Input
    storage: str | None = None  # of a job in a pod, whose disk is lost with it
    title: str = ""  # of its run

    @property
    def output(self) -> Path:
        return self.directory / "output"

    def empty_output(self) -> None:
        """Start with an empty output: leftovers of an earlier attempt would be sealed with the rest."""
        remove(self.output)
        self.output.mkdir(parents=True)

    @property
    def record(self) -> Path:
        """For data that is displayed but not part of the result: samples, tables, curves."""
        path = self.output / RECORD
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def work(self) -> Path:
        path = self.directory / "work"
        make_folder(path)
        return path

    @property
    def metrics(self) -> Path:
        return self.directory / "metrics.jsonl"

    @property
    def notices(self) -> Path:
        return self.directory / NOTICES

    @cached_property
    def heart(self) -> Heartbeat:
        """This process's heartbeat: `job.heart.beat(step, phase)`, for supervised engines."""
        return Heartbeat(self.directory, _rank())

    def spec(self, model: type[S]) -> S:
        return model.model_validate(self.raw_spec)

    def input(self, name: str) -> Path:
        """A parent artifact's directory, its files checked against its digest."""
        return Input(**self.inputs[name]).local()

    def origin(self, name: str) -> Path:
        """The folder of an input that stays when the job's folder is deleted, for what people are shown."""
        entry = Input(**self.inputs[name])
        return Path(entry.origin or entry.path)

    def names(self, group: str) -> list[str]:
        """The names of the inputs of a list (`group.0`, `group.1`, …) or a mapping (`group.key`), in order."""
        return [name for name in self.inputs if name.startswith(f"{group}.")]

    def input_list(self, group: str) -> list[Path]:
        """`input` of each of these names."""
        return [self.input(name) for name in self.names(group)]

    def inputs_of(self, group: str) -> list[Input]:
        """The inputs of these names, to be fetched and checked one by one."""
        return [Input(**self.inputs[name]) for name in self.names(group)]

    def metric(self, step: int, **values: float) -> None:
        """Append one line to metrics.jsonl; it reaches MLflow from there."""
        line = json.dumps({"step": step, "time": time.time(), **values})
        with self.metrics.open("a") as stream:
            stream.write(line + "\n")

    def sync_metrics(self) -> None:
        """Flush the metrics to disk, before a checkpoint that covers their steps is sealed."""
        if self.metrics.exists():
            sync(self.metrics)
            sync(self.directory)

    def forget_after(self, step: int) -> None:
        """Drop the metrics of steps that a resumed run will repeat, and partial lines of a killed writer."""
        if self.metrics.exists():
            lines = [line for line in json_lines(self.metrics) if line["step"] <= step]
            write_text(self.metrics, "".join(json.dumps(line) + "\n" for line in lines))

    def progress(self, done: float, total: float, unit: str, **shown: str | float) -> None:
        """Replace progress.json: `done` of `total` `unit`s, with facts to show beside the progress bar."""
        with replacement(self.directory / "progress.json", synced=False) as partial:
            partial.write_text(json.dumps({"done": done, "total": total, "unit": unit, "shown": shown}))

    def notice(self, text: str) -> None:
        """Tell the user what the result alone does not show, such as rows left out: in the terminal, on the artifact's
        page, and at the top of the report. Each start of an engine begins anew, so what happens at one step is told at
        the end, from the metrics. Of several ranks, the first alone is heard."""
        if _rank() == 0:
            with self.notices.open("a") as stream:
                stream.write(json.dumps({"text": redact_text(text)}) + "\n")

    def finish(self, display: dict[str, Any] | None = None, /, **facts: Any) -> None:
        """Seal the output and write result.json. Nothing may be written to output/ after this. `display` has fields of
        the artifact that no other stage can read, since they depend on more than the result: layout, place."""
        for path in (self.metrics, self.notices):
            if path.exists():
                (self.record / path.name).write_bytes(path.read_bytes())
        open_to_readers(self.output)
        parents = {name: entry["digest"] for name, entry in self.inputs.items() if not entry.get("implied")}
        manifest = write_manifest(
            self.output, self.kind, facts, redact_spec(self.raw_spec), parents, title=self.title, display=display,
            identities={name: of for name in parents if (of := self.inputs[name].get("identity"))},
        )  # fmt: skip
        write_json(self.directory / "result.json", {"digest": manifest.digest})


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file. Partial lines (of a killed writer, or lost in a power cut) are skipped."""
    return _objects(path.read_bytes())


def last_json_line(path: Path) -> dict[str, Any]:
    """The last object of a .jsonl file, however long it is; empty if there is none."""
    return (_objects(end_of(path)) or [{}])[-1]


def _objects(lines: bytes) -> list[dict[str, Any]]:
    objects = []
    for line in lines.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            objects.append(value)
    return objects


def open_job(directory: Path) -> Job:
    """The job in a directory. The views of its inputs are made again if it is rerun by hand."""
    raw = json.loads((directory / "spec.json").read_text())
    for entry in raw["inputs"].values():
        if (origin := entry.get("origin")) and not Path(entry["path"]).exists():
            view(Path(origin), Path(entry["path"]), entry["files"])
    return Job(
        directory, raw["stage"], raw["kind"], raw["spec"], raw["inputs"], raw.get("storage"), raw.get("title", "")
    )


def main(work: Callable[[Job], None]) -> None:
    """The entry point of every engine: open JOB_DIR (the only argument) and work. Errors that a user can act on go into
    result.json, with exit code 1; anything else is a bug and ends in a traceback. Neither shows a secret."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m {_module_name(work)} JOB_DIR")
    quiet()
    redact_tracebacks()
    end_with_launcher(GRACE_S)
    job = open_job(Path(sys.argv[1]).absolute())
    try:
        if _rank():
            print_to_own_log(job.directory, _rank())
        heart = job.heart  # from here on the launcher knows this pid
        work(job)
        heart.end()
    except (StageError, ArtifactError, UserError) as error:
        curable = isinstance(error, StorageError) and error.curable
        _write_error(job, {"error": str(error), "kind": type(error).__name__, "curable": curable})
        raise SystemExit(redact_text(f"{type(error).__name__}: {error}")) from error
    except Exception as error:
        result: dict[str, Any] = {"error": str(error), "kind": type(error).__name__}
        # for a full disk or an unreadable folder the message is enough, and the log has the traceback; a lost peer
        # rank is a ConnectionError, also an OSError, and needs the traceback
        if not isinstance(error, OSError) or isinstance(error, ConnectionError):
            result["traceback"] = traceback.format_exc()
        _write_error(job, result)
        raise


def _rank() -> int:
    """This process's rank, as torchrun sets it; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def _write_error(job: Job, result: dict[str, Any]) -> None:
    """Write result.json, without secrets. Of several ranks the first to fail wins: the others fail because of it."""
    result |= {name: redact_text(result[name]) for name in ("error", "traceback") if name in result}
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        result["rank"] = _rank()
    partial = job.directory / f"result.json.{os.getpid()}.partial"
    try:
        write_json(partial, result)
        os.link(partial, job.directory / "result.json")
    except FileExistsError:
        pass  # another rank was first
    except OSError as error:  # the disk is full: the log and the exit code remain
        print(f"result.json could not be written: {error}", file=sys.stderr)
    finally:
        partial.unlink(missing_ok=True)


def _module_name(work: Callable[[Job], None]) -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else work.__module__
