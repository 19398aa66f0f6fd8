"""Upload one spooled execution to MLflow. This is idempotent: runs are found by their tags, parameters and tags are set
to the same values, and only metric points that MLflow does not have are sent.

A repeated step is sent again if its value differs, as after a roll-back: MLflow keeps both points; the newest counts.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from blake3 import blake3
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException

from baton.infra.paths import is_there, located
from baton.infra.pod import this_pod
from baton.infra.tracking.datasets import send_lineage
from baton.infra.tracking.metrics import Point, belongs, points_after
from baton.infra.tracking.mlflow_names import mlflow_name
from baton.infra.tracking.mlflow_records import (
    ERROR_TAG,
    FLYTE_TAG,
    NAME_TAG,
    PARENT_TAG,
    POD_TAG,
    SEEN_TAG,
    MlflowRecord,
    execution_record,
    stage_record,
)
from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.spool import (
    FAILED,
    KILLED,
    RUNNING,
    StageRun,
    forget_notes,
    pushing,
    read_execution,
    read_note,
    read_stage,
    stage_folders,
    write_note,
)
from baton.infra.tracking.sqlite_file import damage, store_file
from baton.infra.tracking.store import (
    PushFailed,
    TrackingUnreachable,
    artifact_location,
    experiment_name,
    store_digest,
    tracking_uri,
)

METRICS_A_BATCH = 1000  # MLflow's limits
OTHERS_A_BATCH = 100
LONGEST_PARAM = 6000
LONGEST_TAG = 5000
LONGEST_NAME = 250
SEEN_EVERY_S = 60.0


@dataclass(frozen=True)
class Pushed:
    """The part of a spooled record that is already in MLflow (pushed.json)."""

    store: str  # digest of the store's address; another store has nothing of the record
    run_id: str
    sent: str = ""  # digest of the record as last sent
    progress: str = ""  # as last sent
    first: list[float] = field(default_factory=list)  # the first progress seen, and its time
    seen: float = 0.0  # when its last sign of life was sent
    offset: int = 0  # bytes of metrics.jsonl already sent
    file: int = 0  # inode of metrics.jsonl: a resumed engine replaces the file, to drop steps it repeats


@cache
def connect(uri: str) -> MlflowClient:
    """The client of a store; a new SQLite file is created first."""
    if store_file(uri):
        from baton.infra.tracking.sqlite import (
            make_tables,  # imports SQLAlchemy, which pods lack: their store is a server
        )

        make_tables(uri)
    return MlflowClient(uri)


@cache
def newest_steps(uri: str, run_id: str) -> dict[str, int]:
    """The newest step of each metric of a run, updated by the caller with what it sends. Queried once per process: a
    saved copy would be wrong after a kill between sending and saving."""
    data = MlflowClient(uri).get_run(run_id).data
    return {metric.key: metric.step for metric in data.to_proto().metrics}


@cache
def repeated_values(uri: str, run_id: str) -> dict[str, dict[int, float]]:
    """The newest value of each step of a run's metrics whose steps were repeated, filled and updated by the caller."""
    return {}


def _history(client: MlflowClient, run_id: str, key: str) -> dict[int, float]:
    points = sorted(client.get_metric_history(run_id, key), key=lambda point: point.timestamp)
    return {point.step: point.value for point in points}


def push_execution(folder: Path, resend: bool = False, progressed: Callable[[], None] = lambda: None) -> bool:
    """Bring MLflow up to date with the spool, or send everything again (`resend`); `progressed` is called after every
    record. Returns whether the execution has ended and is completely delivered (marked by `delivered`). Raises
    PushFailed; it can be called again at any time."""
    with pushing(folder) as acquired:
        if not acquired:
            return False  # another process is uploading it
        try:
            if resend:
                forget_notes(folder)
            over = _push(folder, progressed)
            if over:
                (folder / "delivered").touch()
        except (MlflowException, *_database_errors(), OSError, TrackingUnreachable) as error:
            connect.cache_clear()
            newest_steps.cache_clear()
            repeated_values.cache_clear()
            _experiment.cache_clear()
            raise PushFailed(_reason(error)) from error
        return over


def _database_errors() -> tuple[type[Exception], ...]:
    """SQLAlchemy's errors, if MLflow has loaded it because the store is a database."""
    loaded = sys.modules.get("sqlalchemy.exc")
    return (loaded.SQLAlchemyError,) if loaded else ()


def _push(folder: Path, progressed: Callable[[], None]) -> bool:
    client = connect(tracking_uri())
    _experiment.cache_clear()  # it may have been deleted meanwhile
    try:
        return _push_records(client, folder, progressed)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    _experiment.cache_clear()
    forget_notes(folder)  # the store was emptied
    return _push_records(client, folder, progressed)


def _push_records(client: MlflowClient, folder: Path, progressed: Callable[[], None]) -> bool:
    """Upload the execution and its stages. Returns whether all of them have ended. The execution is closed after its
    stages: whatever interrupts this, none of them is left running under a closed parent."""
    execution = read_execution(folder)  # before its stages: if it has ended, so have they
    runs = {stage: read_stage(stage) for stage in stage_folders(folder)}
    stages = dict(sorted(runs.items(), key=lambda item: item[1].started))  # a model before its evaluations
    pushed = _read_pushed(folder)
    if pushed is None or execution.ended is None:
        open_ = replace(execution, status=RUNNING, ended=None)
        parent = _push_record(client, folder, execution_record(open_), None)
    else:
        parent = _merged(client, execution_record(execution)) if execution.flyte else pushed.run_id
    name = _name_of(tracking_uri(), parent) if execution.joined else ""
    new = execution.flyte and any(_read_pushed(stage) is None for stage in stages)
    known = runs_with(client, {"baton.execution": execution.id, "baton.role": "stage"}) if new else []
    progressed()
    for stage, run in stages.items():
        # a cached stage has no curves: the stage that made the artifact has them
        job = Path(located(run.job_dir)) if run.job_dir and not run.cached else None
        record = stage_record(execution, stage.name, run, parent, name)
        if execution.flyte and run.cached and _read_pushed(stage) is None and _is_made(known, run):
            continue
        _push_record(client, stage, record, job, known)
        progressed()
    if execution.ended is not None:
        parent = _push_record(client, folder, execution_record(execution), None)
    if execution.flyte and _merged(client, execution_record(execution)) != parent:
        return _push_records(client, folder, progressed)  # another pod created the execution's run at the same time
    return RUNNING not in (execution.status, *(run.status for run in stages.values()))


def _push_record(
    client: MlflowClient, folder: Path, record: MlflowRecord, job: Path | None, known: Sequence[Run] = ()
) -> str:
    """Upload one record and its new metrics; returns its MLflow run id. `known`: on a cluster, the execution's existing
    stage runs."""
    pushed = _read_pushed(folder)
    if pushed is None:
        pushed = Pushed(store_digest(tracking_uri()), _find_or_create(client, record, known))
        write_note(folder, asdict(pushed))
        if POD_TAG in record.key:
            _end_lost_attempts(client, record.key, known)
    elif FLYTE_TAG in record.tags and (first := _merged(client, record)) != pushed.run_id:
        pushed = Pushed(pushed.store, first)
    digest = blake3(json.dumps(asdict(record), sort_keys=True).encode()).hexdigest()
    changed = digest != pushed.sent
    if changed:
        failed = _failed_at(client, record) if FLYTE_TAG in record.tags and record.status in (RUNNING, KILLED) else None
        if failed is not None:
            record = replace(record, status=FAILED, ended=failed)
        elif pushed.sent or record.ended is None or PARENT_TAG not in record.tags:
            name = record.name[:LONGEST_NAME] or None
            client.update_run(pushed.run_id, status=RUNNING, name=name)  # a stage may be retried
        _send_record(client, pushed.run_id, record)
        if pushed.sent and record.ended is not None and ERROR_TAG not in record.tags:
            _forget_error(client, pushed.run_id)
        send_lineage(client, _experiment(tracking_uri(), experiment_name()), pushed.run_id, record)
        pushed = replace(pushed, first=[])
    if POD_TAG in record.key and record.ended is None and time.time() - pushed.seen > SEEN_EVERY_S:
        pushed = replace(pushed, seen=time.time())
        client.set_tag(pushed.run_id, SEEN_TAG, str(pushed.seen))
        write_note(folder, asdict(pushed))
    if job is not None and record.ended is None:
        pushed = _push_progress(client, folder, pushed, job)
    if job is not None and (changed or record.ended is None):
        pushed = _push_metrics(client, folder, pushed, record, job / "metrics.jsonl")
    if changed:
        if record.ended is not None:  # last, so that an ended run is complete
            client.set_terminated(pushed.run_id, record.status, int(record.ended * 1000))
        write_note(folder, asdict(replace(pushed, sent=digest)))
    return pushed.run_id


def _forget_error(client: MlflowClient, run_id: str) -> None:
    """Remove the error of an earlier attempt, or of a pod that was considered lost and continued."""
    try:
        client.delete_tag(run_id, ERROR_TAG)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise


def _failed_at(client: MlflowClient, record: MlflowRecord) -> float | None:
    """The time at which a stage in another pod failed the execution, in seconds since the epoch, unless the stage was
    tried again.

    Flyte ends the other pods of a failed execution, some of them before they have reported their start."""
    newest: dict[str, Run] = {}  # attempt of each node
    for run in runs_with(client, {"baton.execution": record.key["baton.execution"], "baton.role": "stage"}):
        newest[_node(run.data.tags.get(POD_TAG, ""))] = run
    if pod := this_pod():
        newest.pop(_node(pod.name), None)
    return max((run.info.end_time / 1000 for run in newest.values() if run.info.status == FAILED), default=None)


def _node(pod: str) -> str:
    return pod.rpartition("-")[0]  # the rest is the attempt


def _push_metrics(client: MlflowClient, folder: Path, pushed: Pushed, record: MlflowRecord, path: Path) -> Pushed:
    """Send new points of metrics.jsonl that MLflow does not have yet."""
    if not is_there(path):
        return pushed
    if pushed.file != (file := path.stat().st_ino):
        pushed = replace(pushed, offset=0, file=file)
    points, offset = points_after(path, pushed.offset)
    if offset == pushed.offset:
        return pushed
    newest, values = newest_steps(tracking_uri(), pushed.run_id), repeated_values(tracking_uri(), pushed.run_id)
    metrics = [_metric(point) for point in points if belongs(point.time, record.status, record.ended)]
    for key in {metric.key for metric in metrics if metric.step <= newest.get(metric.key, -1)} - values.keys():
        values[key] = _history(client, pushed.run_id, key)
    # as text, in which NaN equals itself
    new = [metric for metric in metrics if str(values.get(metric.key, {}).get(metric.step)) != str(metric.value)]
    for batch in _batches(new, METRICS_A_BATCH):
        client.log_batch(pushed.run_id, metrics=batch)
        for metric in batch:
            newest[metric.key] = max(metric.step, newest.get(metric.key, -1))
            if metric.key in values:
                values[metric.key][metric.step] = metric.value
    pushed = replace(pushed, offset=offset)
    write_note(folder, asdict(pushed))
    return pushed


def _push_progress(client: MlflowClient, folder: Path, pushed: Pushed, job: Path) -> Pushed:
    """Send a running engine's progress.json as one tag, with the first progress and its time."""
    try:
        progress = json.loads((job / "progress.json").read_text())
    except (OSError, ValueError):  # not synced: empty after a power cut until it is written again
        return pushed
    first = pushed.first or [progress["done"], time.time()]
    state = json.dumps(progress)
    if state != pushed.progress:
        text = json.dumps(progress | {"first": first, "time": time.time()})
        client.set_tag(pushed.run_id, "baton.progress", redact_text(text)[:LONGEST_TAG])
        pushed = replace(pushed, progress=state, first=first)
        write_note(folder, asdict(pushed))
    return pushed


def _send_record(client: MlflowClient, run_id: str, record: MlflowRecord) -> None:
    when = int((record.ended or record.started) * 1000)
    metrics = [Metric(key, value, when, 0) for key, value in record.metrics.items()]
    params = [Param(key, cut(value, LONGEST_PARAM)) for key, value in record.params.items()]
    tags = [RunTag(key, value[:LONGEST_TAG]) for key, value in record.tags.items()]
    batches = zip_longest(
        _batches(metrics, METRICS_A_BATCH - 2 * OTHERS_A_BATCH),  # METRICS_A_BATCH limits all three together
        _batches(params, OTHERS_A_BATCH),
        _batches(tags, OTHERS_A_BATCH),
        fillvalue=(),
    )
    for some in batches:
        client.log_batch(run_id, *some)


def cut(value: str, longest: int) -> str:
    """Cut a value to a maximum length. A cut value ends in its digest, so that differences still show."""
    if len(value) <= longest:
        return value
    left_out = f"… ({len(value):,} characters, blake3 {blake3(value.encode(errors='replace')).hexdigest()[:32]})"
    return value[: longest - len(left_out)] + left_out


def _find_or_create(client: MlflowClient, record: MlflowRecord, known: Sequence[Run] = ()) -> str:
    """The id of the run with these tags. If two machines create it at once, both use the first. A pod's own run is in
    `known` or does not exist, since no other process writes it."""
    in_pod = POD_TAG in record.key
    if first := [run.info.run_id for run in known if _has(run, record.key)] if in_pod else _run_ids(client, record.key):
        return str(first[0])
    tags = {key: value[:LONGEST_TAG] for key, value in (record.key | record.tags).items()}
    name = record.name or record.key["baton.execution"]
    experiment = _experiment(tracking_uri(), experiment_name())
    run_id = str(client.create_run(experiment, int(record.started * 1000), tags, name[:LONGEST_NAME]).info.run_id)
    if FLYTE_TAG in record.tags:
        return _merged(client, record)
    if in_pod:
        return run_id
    first_of_all = _run_ids(client, record.key)[0]
    if first_of_all != run_id:
        client.delete_run(run_id)
    return first_of_all


def _merged(client: MlflowClient, record: MlflowRecord) -> str:
    """The one run of an execution. If pods created several at the same time, whichever pod sees them moves the others'
    stages to the first and strips their execution tag: each pod checks after creating its own and after sending its
    stages. The others are not deleted, because MLflow would delete stages that are being added to them."""
    first, *others = _run_ids(client, record.key) or [_find_or_create(client, record)]
    for other in others:
        try:
            client.delete_tag(other, "baton.execution")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # another pod was faster
                raise
        client.set_tag(other, PARENT_TAG, first)
        client.update_run(other, name="empty: two pods began the execution at the same time")
        client.set_terminated(other)
        for stage in _run_ids(client, {"baton.role": "stage", PARENT_TAG: other}):
            client.set_tag(stage, PARENT_TAG, first)
    return first


def _run_ids(client: MlflowClient, key: dict[str, str]) -> list[str]:
    return [run.info.run_id for run in runs_with(client, key)]


def runs_with(client: MlflowClient, key: dict[str, str], more: str = "") -> list[Run]:
    """The runs with these tags, oldest first. `more`: a further condition in MLflow's query language."""
    query = " and ".join([*([more] if more else []), *(f"tags.`{name}` = '{value}'" for name, value in key.items())])
    order = ["attributes.start_time ASC", "attributes.run_id ASC"]
    return list(client.search_runs([_experiment(tracking_uri(), experiment_name())], query, order_by=order))


def _has(run: Run, key: dict[str, str]) -> bool:
    return all(run.data.tags.get(name) == value for name, value in key.items())


def _end_lost_attempts(client: MlflowClient, key: dict[str, str], known: Sequence[Run]) -> None:
    """Mark runs that earlier pods of this stage left as running: they were killed, since another pod has it now."""
    stage = {name: value for name, value in key.items() if name != POD_TAG}
    for run in known:
        if run.info.status == RUNNING and _has(run, stage) and run.data.tags.get(POD_TAG) != key[POD_TAG]:
            client.set_tag(run.info.run_id, ERROR_TAG, f"the pod was killed; {key[POD_TAG]} continued")
            seen = float(run.data.tags.get(SEEN_TAG, time.time()))
            client.set_terminated(run.info.run_id, KILLED, int(seen * 1000))


def _is_made(known: Sequence[Run], run: StageRun) -> bool:
    """Return whether another pod of the execution made the artifact that is cached for this one."""
    return run.output is not None and any(_has(other, {"baton.output": run.output["digest"]}) for other in known)


_names: dict[tuple[str, str], str] = {}


def _name_of(uri: str, parent: str) -> str:
    """An execution's name; empty until the process that began it has recorded it."""
    if (uri, parent) not in _names and (name := MlflowClient(uri).get_run(parent).data.tags.get(NAME_TAG)):
        _names[uri, parent] = name
    return _names.get((uri, parent), "")


@cache
def _experiment(uri: str, name: str) -> str:
    """The id of the experiment, created if missing; queried once per upload."""
    client = connect(uri)
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return str(client.create_experiment(name, artifact_location()))
        except MlflowException:
            experiment = client.get_experiment_by_name(name)  # another process was faster
            if experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise PushFailed(f"the experiment {name!r} was deleted; restore it, or set MLFLOW_EXPERIMENT_NAME")
    return str(experiment.experiment_id)


def _metric(point: Point) -> Metric:
    return Metric(mlflow_name(point.name), point.value, int(point.time * 1000), point.step)


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _read_pushed(folder: Path) -> Pushed | None:
    """The note of what was uploaded, if that was to the current store."""
    note = read_note(folder)
    return Pushed(**note) if note.get("store") == store_digest(tracking_uri()) else None


def _reason(error: Exception) -> str:
    if isinstance(error, TrackingUnreachable):
        return str(error)
    reason = redact_text(str(error)).partition("\n")[0][:300]
    path = store_file(tracking_uri())
    return str(damage(path, reason) or reason) if path else reason
