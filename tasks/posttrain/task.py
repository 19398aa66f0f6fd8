"""The post-training methods as typed Flyte tasks, one for each of METHODS, such as baton.tasks.posttrain.task.grpo."""

from typing import Any

from baton import images
from baton.infra.pod_spec import SAVES
from baton.infra.process.launch import Engine
from baton.tasks.models.artifact import HFModel
from baton.tasks.posttrain.methods import METHODS
from baton.tasks.posttrain.spec import PostTrainSpec, announced
from baton.tasks.rows.artifact import Rows
from baton.tasks.run import run
from baton.tasks.stage import stage
from baton.tasks.stage_job import Reads

ENGINES = {
    name: Engine(name, "baton.tasks.posttrain.engine", version=spec.method.version, helper=spec.method.helper)
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
