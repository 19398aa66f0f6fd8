"""The best of a run's models, as a Flyte task."""

from baton import images
from baton.infra.process.launch import Engine
from baton.tasks.choose.artifact import Choice
from baton.tasks.choose.spec import ChooseSpec
from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.models.artifact import HFModel
from baton.tasks.run import run
from baton.tasks.stage import stage
from baton.tasks.stage_job import Reads

ENGINE = Engine("choose", "baton.tasks.choose.choose", version="3")


@stage(ENGINE, image=images.DATA, returns_input=True)
def choose(spec: ChooseSpec, models: list[HFModel], reports: list[EvalReport]) -> HFModel:
    """Return the model whose evaluation has the best value of the metric, as an unchanged artifact at its place."""
    choice = run(ENGINE, Choice, spec, reads=Reads(files={"models": ()}), models=models, reports=reports)
    best = next(model for model in models if model.digest == choice.chosen)
    return best.at(best.place)
