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
    best = run(ENGINE, HFModel, spec, models=models, reports=reports)
    if best.base is None:
        return best
    # its manifest says where the base was on the machine that trained the adapter
    known = (model.base for model in models if model.base and model.base.digest == best.base.digest)
    return best.with_base_at(next(known).place)
