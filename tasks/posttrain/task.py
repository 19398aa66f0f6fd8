"""The post-training methods as typed Flyte tasks, such as tasks.posttrain.task.grpo: one task for each of METHODS."""

from typing import Any

import images
from infra.pod_spec import SAVES
from infra.process.launch import Engine
from tasks.models.artifact import HFModel
from tasks.posttrain.methods import METHODS
from tasks.posttrain.spec import PostTrainSpec, announced
from tasks.rows.artifact import Rows
from tasks.run import run
from tasks.stage import stage
from tasks.stage_job import Reads

ENGINES = {
    name: Engine(name, "tasks.posttrain.engine", version=spec.method.version, helper=spec.method.helper)
    for name, spec in METHODS.items()
}


def tune(spec: PostTrainSpec, model: HFModel, rows: Rows) -> HFModel:
    """Train a model on rows by the method of the spec."""
    engine, reads = ENGINES[spec.method.name], Reads(checks={"model": HFModel.checks})
    spec = announced(spec, model.parameters)
    return run(engine, HFModel, spec, launch=spec.launch(), reads=reads, model=model, rows=rows)


TASKS: dict[str, Any] = {
    name: stage(ENGINES[name], image=images.POST_TRAIN, pod=SAVES, name=name, spec=spec)(tune)
    for name, spec in METHODS.items()
}


def __getattr__(name: str) -> Any:
    """Return the task of a method: a pod looks up its task as an attribute of this module."""
    if name not in TASKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return TASKS[name]
