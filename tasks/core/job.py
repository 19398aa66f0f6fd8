"""A stage's job, from its engine's point of view.

An engine is a process, `python -m tasks.<stage>.<engine> JOB_DIR`, alone or under torchrun. Its files are

    JOB_DIR/spec.json       input: {"stage", "kind", "spec", "inputs": {name: the fields of an Input}}
    JOB_DIR/output/         output: the artifact, sealed by its manifest
    JOB_DIR/work            files for a resume (checkpoints in progress). In a pod, each folder in it that has a
                            manifest is sent to storage (tasks/core/offsite.py)
    JOB_DIR/metrics.jsonl   output: one object per line, {"step", "time", name: number, …}
    JOB_DIR/progress.json   output: progress, for the terminal's progress bar
    JOB_DIR/notices.jsonl   output: one object per line, {"text"} and {"invalidates"} if true: facts about the result
    JOB_DIR/result.json     output: {"digest"} or {"error", "kind"}, and "traceback" if the error is a bug
    JOB_DIR/log.txt         stdout and stderr of the engine, or of its rank 0; the other ranks have log-rank-<N>.txt

So a stage can be rerun by hand from its job directory.
"""

import gc
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

from baton.infra.errors import UserError
from baton.infra.paths import quiet
from baton.infra.process.heartbeat import Heartbeat
from baton.infra.process.logs import UNWRITTEN, end_of, print_to_own_log, redact_tracebacks
from baton.infra.process.parent_watchdog import end_with_launcher
from baton.infra.progress import NOTICES
from baton.infra.storage.buckets import StorageError
from baton.infra.storage.durable import make_folder, open_to_readers, remove, replacement, sync, write_json, write_text
from baton.infra.text import escaped
from baton.infra.tracking.redact import redact_spec, redact_text
from baton.tasks.core.inputs import view
from baton.tasks.core.manifest import ALL, RECORD, ArtifactError, verify, write_manifest
from baton.tasks.core.spec import Spec
from baton.tasks.core.stored import fetch

S = TypeVar("S", bound=Spec)

GRACE_S = 60.0  # time to save and exit for an engine whose launcher died


class StageError(Exception):
    """Raised if a stage cannot produce its artifact. The message has the reason and advice, and may quote foreign
    text."""

    def __init__(self, message: str) -> None:
        super().__init__(escaped(message))


@dataclass(frozen=True)
class Input:
    """An artifact that a job gets."""

    digest: str
    path: str  # path of its view on this machine (tasks/core/inputs.py); empty if it is fetched when it is needed
    place: str = ""  # path or address that is valid on other machines too
    files: Sequence[str] = ALL  # patterns of the files that the job needs; others may be missing
    implied: bool = False  # whether it is an ancestor of another input, and not recorded as a parent
    origin: str = ""  # the folder to which the view has links
    identity: str = ""

    def local(self) -> Path:
        """Return the artifact's directory, after fetching it if necessary and checking its files against the digest.
        One process per machine checks, since the others read the same files and end with it. Raises ArtifactError,
        StorageError."""
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
    storage: str | None = None  # storage of a job in a pod, whose disk is lost with the pod
    title: str = ""  # title of its run

    @property
    def output(self) -> Path:
        return self.directory / "output"

    def empty_output(self) -> None:
        """Start with an empty output, since leftovers of an earlier attempt would be sealed with the rest."""
        remove(self.output)
        self.output.mkdir(parents=True)

    @property
    def record(self) -> Path:
        """The folder for data that is displayed but not part of the result: samples, tables, curves."""
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
        """Return a parent artifact's directory, after checking its files against its digest."""
        return Input(**self.inputs[name]).local()

    def origin(self, name: str) -> Path:
        """Return the folder of an input that remains when the job's folder is deleted, for paths in displayed text."""
        entry = Input(**self.inputs[name])
        return Path(entry.origin or entry.path)

    def names(self, group: str) -> list[str]:
        """Return the names of the inputs of a list (`group.0`, `group.1`, …) or a mapping (`group.key`), in order."""
        return [name for name in self.inputs if name.startswith(f"{group}.")]

    def input_list(self, group: str) -> list[Path]:
        """Return the result of `input` for each of these names."""
        return [self.input(name) for name in self.names(group)]

    def inputs_of(self, group: str) -> list[Input]:
        """Return the inputs with these names, to be fetched and checked one by one."""
        return [Input(**self.inputs[name]) for name in self.names(group)]

    def metric(self, step: int, **values: float) -> None:
        """Append one line to metrics.jsonl, which is copied to MLflow."""
        line = json.dumps({"step": step, "time": time.time(), **values})
        with self.metrics.open("a") as stream:
            stream.write(line + "\n")

    def sync_metrics(self) -> None:
        """Flush the metrics to disk. Call it before a checkpoint that covers their steps is sealed."""
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

    def notice(self, text: str, invalidates: bool = False) -> None:
        """Report a fact that the result alone does not show, such as omitted rows, in the terminal, on the artifact's
        page, and in the report: among its notes, or in the box at its top if the fact invalidates the result. Each
        start of an engine begins without notices, so facts about single steps are reported at the end, from the
        metrics. Only rank 0 reports."""
        if _rank() == 0:
            with self.notices.open("a") as stream:
                line = {"text": redact_text(text)} | ({"invalidates": True} if invalidates else {})
                stream.write(json.dumps(line) + "\n")

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
            identities={name: identity for name in parents if (identity := self.inputs[name].get("identity"))},
        )  # fmt: skip
        write_json(self.directory / "result.json", {"digest": manifest.digest})


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a .jsonl file. Partial lines (of a killed writer, or after a power cut) are skipped."""
    return _objects(path.read_bytes())


def last_json_line(path: Path) -> dict[str, Any]:
    """Return the last object of a .jsonl file without reading all of it, or {} if there is none."""
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
    """Open the job in a directory. The views of its inputs are made again if it is rerun by hand."""
    raw = json.loads((directory / "spec.json").read_text())
    for entry in raw["inputs"].values():
        if (origin := entry.get("origin")) and not Path(entry["path"]).exists():
            view(Path(origin), Path(entry["path"]), entry["files"])
    return Job(
        directory, raw["stage"], raw["kind"], raw["spec"], raw["inputs"], raw.get("storage"), raw.get("title", "")
    )


def main(work: Callable[[Job], None]) -> None:
    """Run an engine, as its entry point: open JOB_DIR (the only argument) and work. Errors that a user can act on are
    written to result.json, with exit code 1; any other error is a bug and ends in a traceback. Neither shows a
    secret."""
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
        gc.freeze()  # the interpreter examines no object of the libraries for garbage when it exits
    except (StageError, ArtifactError, UserError) as error:
        curable = isinstance(error, StorageError) and error.curable
        _write_error(job, {"error": str(error), "kind": type(error).__name__, "curable": curable})
        raise SystemExit(redact_text(f"{type(error).__name__}: {error}")) from error
    except Exception as error:
        result: dict[str, Any] = {"error": str(error), "kind": type(error).__name__}
        # For a full disk or an unreadable folder the message is enough, and the log has the traceback. A lost peer rank
        # is a ConnectionError, which is also an OSError, and needs the traceback
        if not isinstance(error, OSError) or isinstance(error, ConnectionError):
            result["traceback"] = traceback.format_exc()
        _write_error(job, result)
        raise


def _rank() -> int:
    """Return this process's rank, as set by torchrun, or 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def _write_error(job: Job, result: dict[str, Any]) -> None:
    """Write result.json without secrets. Only the first rank that fails writes, since the others fail because of it."""
    result |= {name: redact_text(result[name]) for name in ("error", "traceback") if name in result}
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        result["rank"] = _rank()
    partial = job.directory / f"result.json.{os.getpid()}.partial"
    try:
        write_json(partial, result)
        os.link(partial, job.directory / "result.json")
    except FileExistsError:
        pass  # another rank was first
    except OSError as error:  # the disk is full, but the log and the exit code remain
        print(f"{UNWRITTEN}{error}", file=sys.stderr)
    finally:
        partial.unlink(missing_ok=True)


def _module_name(work: Callable[[Job], None]) -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else work.__module__
