"""The best of a run's models, as a Flyte task."""

import images
from infra.process.launch import Engine
from tasks.choose.artifact import Choice
from tasks.choose.spec import ChooseSpec
from tasks.evaluate.artifact import EvalReport
from tasks.models.artifact import HFModel
from tasks.run import run
from tasks.stage import stage
from tasks.stage_job import Reads

ENGINE = Engine("choose", "tasks.choose.choose", version="3")


@stage(ENGINE, image=images.DATA, returns_input=True)
def choose(spec: ChooseSpec, models: list[HFModel], reports: list[EvalReport]) -> HFModel:
    """Return the model whose evaluation has the best value of the metric, as an unchanged artifact at its place."""
    choice = run(ENGINE, Choice, spec, reads=Reads(files={"models": ()}), models=models, reports=reports)
    best = next(model for model in models if model.digest == choice.chosen)
    return best.at(best.place)
