"""Convert spooled records to MLflow's parameters, tags and metrics. Does not import MLflow."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any, TypeVar

from baton.infra.tracking.flatten import flatten
from baton.infra.tracking.mlflow_names import mlflow_name
from baton.infra.tracking.spool import Execution, StageRun

T = TypeVar("T")

PARENT_TAG = "mlflow.parentRunId"
NAME_TAG = "baton.name"  # the execution's name
POD_TAG = "baton.pod"  # the pod of the stage's attempt
FLYTE_TAG = "baton.flyte"  # project/domain/id
SHOWN_TAG = "baton.output."  # + detail, family: how the lineage pages show a stage's output
OUTPUT = "output/"  # + name: a metric, from a number among the facts of a stage's output
METRIC_TAG = "baton.metric."  # + name: an output metric's details, as JSON
SETTING_TAG = "baton.setting."  # + field: a value of the recipe that differs from its default
PLAN_TAG = "baton.plan"  # JSON list: the titles of the stages that an execution will run
REPOSITORY_TAG = "baton.repository."  # + commit, origin, …: of the user's repository
RECIPE_TAG = "baton.recipe."  # + number: a part of the recipe with the source of its functions, as JSON
PART = 4_900  # characters of a part, within the limit of a tag
MOST_PARTS = 60
ERROR_TAG = "baton.error"
CODE_TAGS = {  # a fact of code.py -> its tag
    "commit": "mlflow.source.git.commit",
    "dirty": "baton.code.dirty",
    "diff": "baton.code.diff",
    "archive": "baton.code.archive",
}
USER_TAG, NOTE_TAG = "mlflow.user", "mlflow.note.content"  # shown by MLflow's own pages too
ANNOTATION_TAG = "baton.tag."  # + name: a tag that a user gave an execution; empty if it was removed
SEEN_TAG = "baton.seen"  # last sign of life of an attempt in a pod, seconds since the epoch


@dataclass(frozen=True)
class MlflowRecord:
    """A spooled record in MLflow's terms and names."""

    name: str
    key: dict[str, str]  # the tags that identify it
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]  # in addition to metrics.jsonl
    started: float
    ended: float | None
    status: str
    inputs: dict[str, str] = field(default_factory=dict)  # name -> digest; empty for a cached stage
    output: dict[str, Any] | None = None  # kind, digest, facts; None for a cached stage


def execution_record(execution: Execution) -> MlflowRecord:
    """Convert an execution. Of a joined execution, another process records the name, the command and the code."""
    tags = {f"baton.link.{mlflow_name(name)}": address for name, address in execution.links.items()}
    if execution.flyte:
        tags |= {FLYTE_TAG: execution.flyte}
    if execution.error:
        tags |= {ERROR_TAG: execution.error}
    if execution.note is not None:
        tags |= {NOTE_TAG: execution.note}
    tags |= {f"{ANNOTATION_TAG}{name}": value for name, value in execution.tags.items()}
    if not execution.joined:
        tags |= {USER_TAG: execution.user} if execution.user else {}
        tags |= {NAME_TAG: execution.name, "mlflow.source.name": execution.command, "mlflow.source.type": "LOCAL"}
        tags |= {CODE_TAGS[fact]: value for fact, value in execution.code.items()}
        tags |= {f"{SETTING_TAG}{name}": value for name, value in _named(flatten(execution.settings)).items()}
        tags |= {PLAN_TAG: json.dumps(execution.plan)} if execution.plan else {}
        tags |= {f"{REPOSITORY_TAG}{name}": value for name, value in execution.repository.items() if name != "diff"}
        tags |= in_parts(f"{REPOSITORY_TAG}diff.", execution.repository.get("diff", ""))
        tags |= in_parts(RECIPE_TAG, json.dumps(execution.whole) if execution.whole else "")
    return MlflowRecord(
        name="" if execution.joined else f"{execution.name} {execution.id}",
        key={"baton.execution": execution.id, "baton.role": "execution"},
        params=_named(flatten(execution.recipe)),
        tags=tags,
        metrics=_named(execution.metrics) | ({} if execution.joined else _duration(execution)),
        started=execution.started,
        ended=execution.ended,
        status=execution.status,
    )


def stage_record(execution: Execution, stage: str, run: StageRun, parent: str, name: str = "") -> MlflowRecord:
    """Convert a stage. `parent`: the run id of the execution. `name`: the name of a joined execution."""
    tags = {PARENT_TAG: parent, NAME_TAG: name or execution.name, "baton.cached": json.dumps(run.cached)}
    tags |= _named({f"baton.input.{name}": digest for name, digest in run.inputs.items()})
    for group, values in (("version", run.versions), ("machine", run.machine), ("placed", run.placed)):
        tags |= {f"baton.{group}.{mlflow_name(name)}": str(value) for name, value in values.items()}
    tags |= {"baton.job": run.job_dir or "", "baton.command": run.command}
    tags |= {CODE_TAGS[fact]: value for fact, value in run.code.items()}
    metrics = _duration(run)
    if run.error:
        tags[ERROR_TAG] = run.error
    if run.output:
        tags |= {"baton.output.kind": run.output["kind"], "baton.output": run.output["digest"]}
        tags |= {f"{SHOWN_TAG}{name}": text for name, text in run.output.get("shown", {}).items()}
        facts = {name: fact for name, fact in run.output["facts"].items() if fact not in (None, {}, [])}
        for name, metric in facts.pop("metrics", {}).items():  # an evaluation's (see tasks/core/metric.py)
            metrics[f"{OUTPUT}{mlflow_name(name)}"] = metric["value"]
            tags[f"{METRIC_TAG}{mlflow_name(name)}"] = json.dumps(metric)
        for name, value in flatten(facts).items():
            number = _number(value)
            if number is None:
                tags[f"baton.fact.{mlflow_name(name)}"] = value
            else:
                metrics[f"{OUTPUT}{mlflow_name(name)}"] = number
    return MlflowRecord(
        name=run.title,
        key={"baton.execution": execution.id, "baton.role": "stage", "baton.stage": stage}
        | ({POD_TAG: run.pod} if run.pod else {}),
        params=_named(run.params),
        tags={name: value for name, value in tags.items() if value},
        metrics=metrics,
        started=run.started,
        ended=run.ended,
        status=run.status,
        inputs={} if run.cached else run.inputs,
        output=None if run.cached else run.output,
    )


def _named(values: Mapping[str, T]) -> dict[str, T]:
    return {mlflow_name(name): value for name, value in values.items()}


def in_parts(name: str, text: str) -> dict[str, str]:
    """A long text as several tags, NAME0, NAME1, …, which `joined_text` joins; none if it is too long even for that."""
    parts = [text[start : start + PART] for start in range(0, len(text), PART)]
    return {f"{name}{number}": part for number, part in enumerate(parts)} if len(parts) <= MOST_PARTS else {}


def joined_text(name: str, tags: Mapping[str, str]) -> str:
    """The text that `in_parts` cut; empty if it was not recorded."""
    return "".join(takewhile(bool, (tags.get(f"{name}{number}", "") for number in count())))


def _duration(record: Execution | StageRun) -> dict[str, float]:
    return {} if record.ended is None else {"duration_s": round(record.ended - record.started, 3)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
