"""The post-training methods as typed Flyte tasks: tasks.posttrain.task.sft and so on."""

from types import FunctionType
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

ENGINES = {
    name: Engine(name, "tasks.posttrain.engine", version=spec.method.version, helper=spec.method.helper)
    for name, spec in METHODS.items()
}


def _tune(spec: PostTrainSpec, model: HFModel, rows: Rows) -> HFModel:
    engine = ENGINES[spec.method.name]
    spec, checks = announced(spec, model.parameters), {"model": HFModel.checks}
    return run(engine, HFModel, spec, **spec.processes(), checks=checks, model=model, rows=rows)


def _task(name: str, spec: type[PostTrainSpec]) -> Any:
    """The task of one method: Flyte takes its name from the function, and the type of its spec from the annotation."""
    tune = FunctionType(_tune.__code__, globals(), name)
    tune.__qualname__, tune.__doc__ = name, spec.__doc__
    tune.__annotations__ = _tune.__annotations__ | {"spec": spec}
    return stage(ENGINES[name], image=images.POST_TRAIN, pod=SAVES)(tune)


TASKS = {name: _task(name, spec) for name, spec in METHODS.items()}
globals().update(TASKS)  # a pod finds its task as an attribute of this module
