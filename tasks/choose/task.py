"""The best of a run's models, as a Flyte task."""

import images
from infra.launch import Engine
from tasks.artifacts import EvalReport, HFModel
from tasks.choose.spec import ChooseSpec
from tasks.stage import run, stage

ENGINE = Engine("choose", "tasks.choose.choose", version="1")


@stage(ENGINE, image=images.DATA)
def choose(spec: ChooseSpec, models: list[HFModel], reports: list[EvalReport]) -> HFModel:
    """Return the model whose evaluation has the best value of the metric."""
    return run(ENGINE, HFModel, spec, models=models, reports=reports)
