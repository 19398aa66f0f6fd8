"""Push one spooled execution to MLflow. Pushing again changes nothing: runs are found by their tags, parameters and
tags are set to what they are, and of a metric only the points after the newest one that MLflow has are sent.

So the steps that a resumed engine takes again are there once, as they were first."""

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

from infra.tracking.datasets import send_lineage
from infra.tracking.metrics import Point, points_after
from infra.tracking.redact import redact_text
from infra.tracking.spool import (
    FINISHED,
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
from infra.tracking.sqlite_file import damage, store_file
from infra.tracking.store import (
    PushFailed,
    TrackingUnreachable,
    artifact_location,
    experiment_name,
    store_digest,
    tracking_uri,
)
from infra.tracking.words import (
    FLYTE_TAG,
    NAME_TAG,
    PARENT_TAG,
    POD_TAG,
    SEEN_TAG,
    Words,
    execution_words,
    mlflow_name,
    stage_words,
)

METRICS_A_BATCH = 1000  # MLflow's limits
OTHERS_A_BATCH = 100
LONGEST_PARAM = 6000
LONGEST_TAG = 5000
LONGEST_NAME = 250
SEEN_EVERY_S = 60.0
FILE_CLOCK_S = 0.1  # a killed run ended when its files last changed, by a coarser clock


@dataclass(frozen=True)
class Pushed:
    """What of one spooled record is in MLflow already (pushed.json)."""

    store: str  # digest of the store's address: another store has none of it
    run_id: str
    sent: str = ""  # digest of the record as it was last sent
    progress: str = ""  # as it was last sent
    first: list[float] = field(default_factory=list)  # how far it was when it was first looked at, and when
    seen: float = 0.0  # when its last sign of life was sent
    offset: int = 0  # bytes of metrics.jsonl that are sent
    file: int = 0  # its inode: a resumed engine replaces the file, to drop the steps it takes again


@cache
def connect(uri: str) -> MlflowClient:
    """The client of a store; a new SQLite file gets its tables first."""
    if store_file(uri):
        from infra.tracking.sqlite import make_tables  # SQLAlchemy: a pod, whose store is a server, does without

        make_tables(uri)
    return MlflowClient(uri)


@cache
def newest_steps(uri: str, run_id: str) -> dict[str, int]:
    """The newest step of each metric that a run of a store has; kept up to date by whoever sends more. Asked for once
    a process: a note of it would be wrong after a kill between a push and its note."""
    data = MlflowClient(uri).get_run(run_id).data
    return {metric.key: metric.step for metric in data.to_proto().metrics}


def push_execution(folder: Path, anew: bool = False, progressed: Callable[[], None] = lambda: None) -> bool:
    """Bring MLflow up to what the spool has, or send all of it again (`anew`); `progressed` is called after every
    record. Returns whether the execution is over and delivered whole (`delivered` marks it). Raises PushFailed, after
    which it may be called again at any time."""
    with pushing(folder) as mine:
        if not mine:
            return False  # another process is at it
        try:
            if anew:
                forget_notes(folder)
            over = _push(folder, progressed)
            if over:
                (folder / "delivered").touch()
        except (MlflowException, *_of_a_database(), OSError, TrackingUnreachable) as error:
            connect.cache_clear()
            newest_steps.cache_clear()
            _experiment.cache_clear()
            raise PushFailed(_said(error)) from error
        return over


def _of_a_database() -> tuple[type[Exception], ...]:
    """The errors of MLflow's own databases, whose library it loads when the store is one."""
    loaded = sys.modules.get("sqlalchemy.exc")
    return (loaded.SQLAlchemyError,) if loaded else ()


def _push(folder: Path, progressed: Callable[[], None]) -> bool:
    client = connect(tracking_uri())
    _experiment.cache_clear()  # it may have been deleted since
    try:
        return _push_records(client, folder, progressed)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    _experiment.cache_clear()
    forget_notes(folder)  # the store was emptied: nothing of it is there
    return _push_records(client, folder, progressed)


def _push_records(client: MlflowClient, folder: Path, progressed: Callable[[], None]) -> bool:
    """Push the parent and its children. Returns whether all of them have ended."""
    execution = read_execution(folder)
    found = {stage: read_stage(stage) for stage in stage_folders(folder)}
    stages = dict(sorted(found.items(), key=lambda each: each[1].started))  # a model before what was found about it
    parent = _push_record(client, folder, execution_words(execution), None)
    name = _name_of(tracking_uri(), parent) if execution.joined else ""
    new = execution.flyte and any(_read_pushed(stage) is None for stage in stages)
    known = runs_with(client, {"baton.execution": execution.id, "baton.role": "stage"}) if new else []
    progressed()
    for stage, run in stages.items():
        job = Path(run.job_dir) if run.job_dir and not run.cached else None  # the maker's curves are there once
        words = stage_words(execution, stage.name, run, parent, name)
        if execution.flyte and run.cached and _read_pushed(stage) is None and _is_made(known, run):
            continue
        _push_record(client, stage, words, job, known)
        progressed()
        if (now := read_execution(folder)) != execution:
            _push_record(client, folder, execution_words(now), None)  # how it ended: as soon as it has
    if execution.flyte and _merged(client, execution_words(execution)) != parent:
        return _push_records(client, folder, progressed)  # another pod made the execution's run at the same moment
    return RUNNING not in (execution.status, *(run.status for run in stages.values()))


def _push_record(client: MlflowClient, folder: Path, words: Words, job: Path | None, known: Sequence[Run] = ()) -> str:
    """Push one record and what is new of its metrics; returns its MLflow run id. `known`: the runs of stages that the
    execution had before, on a cluster."""
    pushed = _read_pushed(folder)
    if pushed is None:
        pushed = Pushed(store_digest(tracking_uri()), _find_or_create(client, words, known))
        _write_pushed(folder, pushed)
        if POD_TAG in words.key:
            _end_lost_attempts(client, words.key, known)
    elif FLYTE_TAG in words.tags and (first := _merged(client, words)) != pushed.run_id:
        pushed = Pushed(pushed.store, first)
    digest = blake3(json.dumps(asdict(words), sort_keys=True).encode()).hexdigest()
    changed = digest != pushed.sent
    if changed:
        if pushed.sent or words.ended is None or PARENT_TAG not in words.tags:
            name = words.name[:LONGEST_NAME] or None
            client.update_run(pushed.run_id, status=RUNNING, name=name)  # a stage may be tried again
        _send_words(client, pushed.run_id, words)
        send_lineage(client, _experiment(tracking_uri(), experiment_name()), pushed.run_id, words)
        pushed = replace(pushed, first=[])
    if POD_TAG in words.key and words.ended is None and time.time() - pushed.seen > SEEN_EVERY_S:
        pushed = replace(pushed, seen=time.time())
        client.set_tag(pushed.run_id, SEEN_TAG, str(pushed.seen))
        _write_pushed(folder, pushed)
    if job is not None and words.ended is None:
        pushed = _push_progress(client, folder, pushed, job)
    if job is not None and (changed or words.ended is None):
        pushed = _push_metrics(client, folder, pushed, words, job / "metrics.jsonl")
    if changed:
        if words.ended is not None:  # last, so that a run that has ended is whole
            client.set_terminated(pushed.run_id, words.status, int(words.ended * 1000))
        _write_pushed(folder, replace(pushed, sent=digest))
    return pushed.run_id


def _push_metrics(client: MlflowClient, folder: Path, pushed: Pushed, words: Words, path: Path) -> Pushed:
    """Send the points that are new in metrics.jsonl and that MLflow does not have."""
    if not path.exists():
        return pushed
    if pushed.file != (file := path.stat().st_ino):
        pushed = replace(pushed, offset=0, file=file)
    for batch, offset in points_after(path, pushed.offset, METRICS_A_BATCH):
        newest = newest_steps(tracking_uri(), pushed.run_id)
        metrics = [_metric(point) for point in batch if _belongs(point, words)]
        if metrics := [metric for metric in metrics if metric.step > newest.get(metric.key, -1)]:
            client.log_batch(pushed.run_id, metrics=metrics)
            newest |= {metric.key: metric.step for metric in metrics}
        pushed = replace(pushed, offset=offset)
        _write_pushed(folder, pushed)
    return pushed


def _push_progress(client: MlflowClient, folder: Path, pushed: Pushed, job: Path) -> Pushed:
    """How far a running engine is (its progress.json), as one tag, with how far it was at first and when."""
    try:
        progress = json.loads((job / "progress.json").read_text())
    except (FileNotFoundError, ValueError):  # not synced: a power cut can leave it empty until it is written again
        return pushed
    first = pushed.first or [progress["done"], time.time()]
    told = json.dumps(progress)
    if told != pushed.progress:
        text = json.dumps(progress | {"first": first, "time": time.time()})
        client.set_tag(pushed.run_id, "baton.progress", redact_text(text)[:LONGEST_TAG])
        pushed = replace(pushed, progress=told, first=first)
        _write_pushed(folder, pushed)
    return pushed


def _send_words(client: MlflowClient, run_id: str, words: Words) -> None:
    when = int((words.ended or words.started) * 1000)
    metrics = [Metric(mlflow_name(key), value, when, 0) for key, value in words.metrics.items()]
    params = [Param(mlflow_name(key), value[:LONGEST_PARAM]) for key, value in words.params.items()]
    tags = [RunTag(mlflow_name(key), value[:LONGEST_TAG]) for key, value in words.tags.items()]
    batches = zip_longest(
        _batches(metrics, METRICS_A_BATCH - 2 * OTHERS_A_BATCH),  # METRICS_A_BATCH is the limit of all three together
        _batches(params, OTHERS_A_BATCH),
        _batches(tags, OTHERS_A_BATCH),
        fillvalue=(),
    )
    for some in batches:
        client.log_batch(run_id, *some)


def _find_or_create(client: MlflowClient, words: Words, known: Sequence[Run] = ()) -> str:
    """The run with these tags. Where two processes made it at once, on two machines, both take the first. A pod's own
    is among `known` or nowhere: nobody else writes of it."""
    own = POD_TAG in words.key
    if first := [run.info.run_id for run in known if _has(run, words.key)] if own else _found(client, words.key):
        return str(first[0])
    tags = {mlflow_name(key): value[:LONGEST_TAG] for key, value in (words.key | words.tags).items()}
    name = words.name or words.key["baton.execution"]
    experiment = _experiment(tracking_uri(), experiment_name())
    made = str(client.create_run(experiment, int(words.started * 1000), tags, name[:LONGEST_NAME]).info.run_id)
    if FLYTE_TAG in words.tags:
        return _merged(client, words)
    if own:
        return made
    first_of_all = _found(client, words.key)[0]
    if first_of_all != made:
        client.delete_run(made)
    return first_of_all


def _merged(client: MlflowClient, words: Words) -> str:
    """The one run of an execution. One that another pod made at the same moment gives its stages to the first and is
    no execution any more, by whoever sees both: each looks after it has made its own, and again after it has sent its
    stages. It is not deleted: MLflow would delete the stages with it that are coming just now."""
    first, *others = _found(client, words.key) or [_find_or_create(client, words)]
    for other in others:
        try:
            client.delete_tag(other, "baton.execution")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # somebody else was faster
                raise
        client.set_tag(other, PARENT_TAG, first)
        client.update_run(other, name="empty: two pods began the execution at one moment")
        client.set_terminated(other)
        for stage in _found(client, {"baton.role": "stage", PARENT_TAG: other}):
            client.set_tag(stage, PARENT_TAG, first)
    return first


def _found(client: MlflowClient, key: dict[str, str]) -> list[str]:
    return [run.info.run_id for run in runs_with(client, key)]


def runs_with(client: MlflowClient, key: dict[str, str], more: str = "") -> list[Run]:
    """The runs with these tags, oldest first. `more`: what else is asked of them, in MLflow's words."""
    query = " and ".join([*([more] if more else []), *(f"tags.`{name}` = '{value}'" for name, value in key.items())])
    order = ["attributes.start_time ASC", "attributes.run_id ASC"]
    return list(client.search_runs([_experiment(tracking_uri(), experiment_name())], query, order_by=order))


def _has(run: Run, key: dict[str, str]) -> bool:
    return all(run.data.tags.get(name) == value for name, value in key.items())


def _end_lost_attempts(client: MlflowClient, key: dict[str, str], known: Sequence[Run]) -> None:
    """Another pod has this stage now: what earlier pods left as running was killed."""
    stage = {name: value for name, value in key.items() if name != POD_TAG}
    for run in known:
        if run.info.status == RUNNING and _has(run, stage) and run.data.tags.get(POD_TAG) != key[POD_TAG]:
            client.set_tag(run.info.run_id, "baton.error", f"the pod ended without a word; {key[POD_TAG]} went on")
            seen = float(run.data.tags.get(SEEN_TAG, time.time()))
            client.set_terminated(run.info.run_id, KILLED, int(seen * 1000))


def _is_made(known: Sequence[Run], run: StageRun) -> bool:
    """Whether another pod of the execution has made what this one takes for cached."""
    return run.output is not None and any(_has(other, {"baton.output": run.output["digest"]}) for other in known)


_names: dict[tuple[str, str], str] = {}


def _name_of(uri: str, parent: str) -> str:
    """An execution's name; empty until whoever began it has said it."""
    if (uri, parent) not in _names and (name := MlflowClient(uri).get_run(parent).data.tags.get(NAME_TAG)):
        _names[uri, parent] = name
    return _names.get((uri, parent), "")


@cache
def _experiment(uri: str, name: str) -> str:
    """The id of the experiment, which is made when it is not there; asked for once a push."""
    client = connect(uri)
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location()))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another process was faster
            if found is None:
                raise
    if found.lifecycle_stage != "active":
        raise PushFailed(f"the experiment {name!r} was deleted; restore it, or set MLFLOW_EXPERIMENT_NAME")
    return str(found.experiment_id)


def _belongs(point: Point, words: Words) -> bool:
    """Not what another execution added after it took up the job that this one did not finish."""
    return words.ended is None or words.status == FINISHED or point.time <= words.ended + FILE_CLOCK_S


def _metric(point: Point) -> Metric:
    return Metric(mlflow_name(point.name), point.value, int(point.time * 1000), point.step)


def _batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _read_pushed(folder: Path) -> Pushed | None:
    """What was pushed to the store that is in use now."""
    note = read_note(folder)
    return Pushed(**note) if note.get("store") == store_digest(tracking_uri()) else None


def _write_pushed(folder: Path, pushed: Pushed) -> None:
    write_note(folder, asdict(pushed))


def _said(error: Exception) -> str:
    if isinstance(error, TrackingUnreachable):
        return str(error)
    reason = redact_text(str(error)).partition("\n")[0][:300]
    path = store_file(tracking_uri())
    return str(damage(path, reason) or reason) if path else reason
