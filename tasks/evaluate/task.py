"""The typed task: how good is this model on held-out text?"""

import images
from infra.launch import Engine
from tasks.artifacts import Corpus, EvalReport, HFModel
from tasks.evaluate.spec import EvaluateSpec
from tasks.stage import run, stage

ENGINE = Engine("evaluate", "tasks.evaluate.evaluate", version="3")


@stage(ENGINE, image=images.SERVE)
def evaluate(spec: EvaluateSpec, model: HFModel, corpus: Corpus, more: list[Corpus]) -> EvalReport:
    """Score a model on the held-out text of `corpus`, and by itself on that of each of `more`."""
    return run(ENGINE, EvalReport, spec, title=f"evaluate-{model.label}", model=model, corpus=corpus, more=more)
