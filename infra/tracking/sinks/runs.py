"""Read the records of an execution as runs, in the terms that trackers share: parameters, tags, rows of metrics."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from blake3 import blake3

from baton.infra.paths import is_there, located
from baton.infra.tracking.metrics import Point, belongs, points_after
from baton.infra.tracking.mlflow_names import original_name
from baton.infra.tracking.mlflow_records import MlflowRecord, execution_record, stage_record
from baton.infra.tracking.spool import read_execution, read_stage, stage_folders

LONGEST_VALUE = 5000  # characters of a parameter or a tag
COMMIT = "mlflow.source.git.commit"
# tags with source code, paths of this machine or MLflow's own terms, which stay in Baton's home and in MLflow
LEFT_OUT = ("mlflow.", "code.diff", "code.archive", "repository.diff", "recipe.", "command", "job", "link.", "metric.")


@dataclass(frozen=True)
class Row:
    """The metrics of a step that were recorded together."""

    step: int
    time: float  # seconds since the epoch
    values: dict[str, float]


@dataclass(frozen=True)
class Run:
    """One record: a stage, or the execution itself."""

    id: str  # 32 hexadecimal digits, the same in each delivery
    execution: str
    stage: str  # name of its folder in the spool; "" for the execution
    name: str
    params: dict[str, Any]
    tags: dict[str, str]  # execution, role, stage, input.<name>, output, …
    summary: dict[str, float]  # metrics without steps, such as the facts of an output
    started: float  # seconds since the epoch
    ended: float | None
    status: str
    rows: Sequence[Row]
    revision: int  # grows when earlier rows have changed: steps were trained again
    has_lost_rows: bool  # its job's folder is gone

    @property
    def last_step(self) -> int:
        return max((row.step for row in self.rows), default=0)

    def digest(self) -> str:
        """A digest of the record and of the number of its rows; equal digests have nothing new to send."""
        state = [self.params, self.tags, self.summary, self.ended, self.status, len(self.rows), self.revision]
        return blake3(json.dumps(state, sort_keys=True, default=str).encode()).hexdigest(length=16)


@dataclass
class Curves:
    """The rows of a job's metrics.jsonl, read as the file grows. A step that was trained again after a restart counts
    once, with its last value, in the place of its first."""

    path: Path
    rows: list[Row] = field(default_factory=list)
    revision: int = 0
    _offset: int = 0
    _file: int = 0
    _seen: set[tuple[str, int]] = field(default_factory=set)

    def read(self) -> None:
        """Add the rows of new lines, or read all of them again if the file was replaced or repeats a step."""
        if not is_there(self.path):
            return
        state = self.path.stat()
        if state.st_ino != self._file or state.st_size < self._offset:
            self._forget(state.st_ino)
        points, offset = points_after(self.path, self._offset)
        if any((point.name, point.step) in self._seen for point in points):
            self._forget(state.st_ino)
            points, offset = points_after(self.path, 0)
        self._offset = offset
        self._seen |= {(point.name, point.step) for point in points}
        self.rows += _rows(points)

    def _forget(self, file: int) -> None:
        self.revision += bool(self.rows)
        self.rows, self._offset, self._file = [], 0, file
        self._seen.clear()


class Reader:
    """Reads the runs of one execution, again and again while it grows."""

    def __init__(self, execution: Path) -> None:
        self.execution = execution
        self._curves: dict[str, Curves] = {}  # by stage

    def runs(self) -> tuple[list[Run], bool]:
        """Return the execution and its stages in the order of their starts, and whether all of them have ended. Raises
        RecordDamaged."""
        execution = read_execution(self.execution)  # before its stages: if it has ended, so have they
        stages = {folder.name: read_stage(folder) for folder in stage_folders(self.execution)}
        runs = [_run(execution_record(execution), self.execution.name, "", Curves(Path()), is_gone=False)]
        for name, stage in sorted(stages.items(), key=lambda item: item[1].started):
            record = stage_record(execution, name, stage, parent="")
            # a cached stage has no curves: the stage that made the artifact has them
            job = Path(located(stage.job_dir)) if stage.job_dir and not stage.cached else None
            curves = self._curves.setdefault(name, Curves(Path()))
            if job and curves.path != job / "metrics.jsonl":
                curves = self._curves[name] = Curves(job / "metrics.jsonl")
            if job:
                curves.read()
            runs.append(_run(record, self.execution.name, name, curves, is_gone=bool(job and not is_there(job))))
        return runs, all(run.ended is not None for run in runs)


def _run(record: MlflowRecord, execution: str, stage: str, curves: Curves, is_gone: bool) -> Run:
    tags = {name.removeprefix("baton."): value for name, value in (record.key | record.tags).items()}
    commit = {"commit": record.tags[COMMIT]} if COMMIT in record.tags else {}
    return Run(
        id=blake3(f"{execution}/{stage}".encode()).hexdigest(length=16),
        execution=execution,
        stage=stage,
        name=record.name or execution,
        params={original_name(name): _typed(value) for name, value in record.params.items()},
        tags=commit
        | {original_name(name): value[:LONGEST_VALUE] for name, value in tags.items() if not name.startswith(LEFT_OUT)},
        summary={original_name(name): value for name, value in record.metrics.items()},
        started=record.started,
        ended=record.ended,
        status=record.status,
        rows=[row for row in curves.rows if belongs(row.time, record.status, record.ended)],
        revision=curves.revision,
        has_lost_rows=is_gone,
    )


def _rows(points: Sequence[Point]) -> Iterator[Row]:
    for (step, time), row in groupby(points, attrgetter("step", "time")):
        yield Row(step, time, {point.name: point.value for point in row})


def _typed(value: str) -> Any:
    """The JSON value of a flattened parameter; text that is not JSON, and a long value, stay text."""
    if len(value) > LONGEST_VALUE:
        return value[:LONGEST_VALUE]
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
