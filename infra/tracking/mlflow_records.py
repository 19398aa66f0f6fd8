"""Convert spooled records to MLflow's parameters, tags and metrics. Does not import MLflow."""

import json
import posixpath
import re
from dataclasses import dataclass, field
from typing import Any

from infra.tracking.flatten import flatten
from infra.tracking.spool import Execution, StageRun

PARENT_TAG = "mlflow.parentRunId"
NAME_TAG = "baton.name"  # of the execution
POD_TAG = "baton.pod"  # of the stage's attempt
FLYTE_TAG = "baton.flyte"  # project/domain/id
METRIC_TAG = "baton.metric."  # + name: an output metric's details, as JSON
SETTING_TAG = "baton.setting."  # + field: a value of the recipe that differs from its default
PLAN_TAG = "baton.plan"  # JSON list: the titles of the stages that an execution will run
SEEN_TAG = "baton.seen"  # last sign of life of an attempt in a pod, seconds since the epoch


@dataclass(frozen=True)
class MlflowRecord:
    """A spooled record in MLflow's terms."""

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
    """A process that joined an execution records only what identifies it."""
    tags = {f"baton.link.{name}": address for name, address in execution.links.items()}
    if execution.flyte:
        tags |= {FLYTE_TAG: execution.flyte}
    if not execution.joined:
        tags |= {NAME_TAG: execution.name, "mlflow.source.name": execution.command, "mlflow.source.type": "LOCAL"}
        tags |= _code_tags(execution.code)
        tags |= {f"{SETTING_TAG}{name}": value for name, value in flatten(execution.settings).items()}
        tags |= {PLAN_TAG: json.dumps(execution.plan)} if execution.plan else {}
    return MlflowRecord(
        name="" if execution.joined else f"{execution.name} {execution.id}",
        key={"baton.execution": execution.id, "baton.role": "execution"},
        params=flatten(execution.recipe),
        tags=tags,
        metrics=execution.metrics | ({} if execution.joined else _duration(execution)),
        started=execution.started,
        ended=execution.ended,
        status=execution.status,
    )


def stage_record(execution: Execution, stage: str, run: StageRun, parent: str, name: str = "") -> MlflowRecord:
    """`parent`: the run id of the execution. `name`: of a joined execution."""
    tags = {PARENT_TAG: parent, NAME_TAG: name or execution.name, "baton.cached": json.dumps(run.cached)}
    tags |= {f"baton.input.{name}": digest for name, digest in run.inputs.items()}
    for group, values in (("version", run.versions), ("machine", run.machine), ("placed", run.placed)):
        tags |= {f"baton.{group}.{name}": str(value) for name, value in values.items()}
    tags |= {"baton.job": run.job_dir or "", "baton.command": run.command}
    metrics = _duration(run)
    if run.error:
        tags["baton.error"] = run.error
    if run.output:
        tags |= {"baton.output.kind": run.output["kind"], "baton.output": run.output["digest"]}
        facts = dict(run.output["facts"])
        for name, metric in facts.pop("metrics", {}).items():  # of an evaluation (see tasks/metric.py)
            metrics[f"output/{name}"] = metric["value"]
            tags[f"{METRIC_TAG}{name}"] = json.dumps(metric)
        for name, value in flatten(facts).items():
            number = _number(value)
            if number is None:
                tags[f"baton.fact.{name}"] = value
            else:
                metrics[f"output/{name}"] = number
    return MlflowRecord(
        name=run.title,
        key={"baton.execution": execution.id, "baton.role": "stage", "baton.stage": stage}
        | ({POD_TAG: run.pod} if run.pod else {}),
        params=run.params,
        tags={name: value for name, value in (tags | _code_tags(run.code)).items() if value},
        metrics=metrics,
        started=run.started,
        ended=run.ended,
        status=run.status,
        inputs={} if run.cached else run.inputs,
        output=None if run.cached else run.output,
    )


def mlflow_name(text: str) -> str:
    """A valid MLflow name: letters, digits, _-./: and space, and a normalized path."""
    name = re.sub(r"[^\w\-./: ]", "_", text, flags=re.ASCII)[:250]
    name = re.sub("^[./]", "_", name)
    return name if posixpath.normpath(name) == name else name.replace("/", "_")


def _code_tags(code: dict[str, str]) -> dict[str, str]:
    names = {"commit": "mlflow.source.git.commit", "dirty": "baton.code.dirty", "diff": "baton.code.diff"}
    return {names[key]: value for key, value in code.items()}


def _duration(record: Execution | StageRun) -> dict[str, float]:
    return {} if record.ended is None else {"duration_s": round(record.ended - record.started, 3)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
