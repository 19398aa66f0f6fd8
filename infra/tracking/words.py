"""Spooled records in MLflow's words: parameters, tags, metrics. Does not import MLflow."""

import json
from dataclasses import dataclass

from infra.tracking.flatten import flatten
from infra.tracking.spool import Execution, StageRun


@dataclass(frozen=True)
class Words:
    """A spooled record in MLflow's words."""

    name: str
    key: dict[str, str]  # the tags that identify it
    params: dict[str, str]
    tags: dict[str, str]
    metrics: dict[str, float]  # beside those of metrics.jsonl
    started: float
    ended: float | None
    status: str


def execution_words(execution: Execution) -> Words:
    tags = {"baton.name": execution.name, "mlflow.source.name": execution.command, "mlflow.source.type": "LOCAL"}
    return Words(
        name=f"{execution.name} {execution.id}",
        key={"baton.execution": execution.id, "baton.role": "execution"},
        params=flatten(execution.recipe),
        tags=tags | _code_tags(execution.code),
        metrics=execution.metrics | _duration(execution),
        started=execution.started,
        ended=execution.ended,
        status=execution.status,
    )


def stage_words(execution: Execution, stage: str, run: StageRun, parent: str) -> Words:
    tags = {"mlflow.parentRunId": parent, "baton.name": execution.name, "baton.cached": json.dumps(run.cached)}
    tags |= {f"baton.input.{name}": digest for name, digest in run.inputs.items()}
    tags |= {f"baton.version.{name}": version for name, version in run.versions.items()}
    metrics = _duration(run)
    tags |= {f"baton.placed.{name}": str(value) for name, value in run.placed.items()}
    if run.error:
        tags["baton.error"] = run.error
    if run.output:
        tags |= {"baton.output.kind": run.output["kind"], "baton.output": run.output["digest"]}
        for name, value in flatten(run.output["facts"]).items():
            number = _number(value)
            if number is None:
                tags[f"baton.fact.{name}"] = value
            else:
                metrics[f"output/{name}"] = number
    return Words(
        name=run.title,
        key={"baton.execution": execution.id, "baton.role": "stage", "baton.stage": stage},
        params=run.params,
        tags=tags | _code_tags(run.code),
        metrics=metrics,
        started=run.started,
        ended=run.ended,
        status=run.status,
    )


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
