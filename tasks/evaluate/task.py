"""The typed task: how good is this model?"""

import images
from infra.launch import Engine
from tasks.artifacts import Corpus, EvalReport, HFModel, Rows
from tasks.evaluate.spec import EvaluateSpec
from tasks.stage import run, stage

ENGINE = Engine("evaluate", "tasks.evaluate.evaluate", version="5")


@stage(ENGINE, image=images.SERVE)
def evaluate(spec: EvaluateSpec, model: HFModel, corpora: list[Corpus], rows: list[Rows]) -> EvalReport:
    """Run the spec's evaluators on a model. Bits per byte are of the first corpus, and by itself of each of the others;
    `rows` are the sets that the evaluators ask, in the order of `spec.sets()`."""
    return run(ENGINE, EvalReport, spec, title=f"evaluate-{model.label}", model=model, corpora=corpora, rows=rows)
