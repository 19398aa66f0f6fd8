"""Evaluation as a typed Flyte task."""

from baton import images
from baton.infra.process.launch import Engine
from baton.tasks.data.artifact import Corpus
from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.evaluate.spec import EvaluateSpec
from baton.tasks.models.artifact import HFModel
from baton.tasks.rows.artifact import Rows
from baton.tasks.run import run
from baton.tasks.stage import stage
from baton.tasks.stage_job import Reads

ENGINE = Engine("evaluate", "baton.tasks.evaluate.evaluate", version="8")


@stage(ENGINE, image=images.SERVE)
def evaluate(spec: EvaluateSpec, model: HFModel, corpora: list[Corpus], rows: list[Rows]) -> EvalReport:
    """Run the spec's evaluators on a model. Bits per byte are measured on each corpus separately, and the metric is
    that of the first; `rows` are in the order of `spec.sets()`."""
    title = f"evaluate-{model.label}"
    reads = Reads(files={"corpora": Corpus.held_out_files}, checks={"model": HFModel.checks})
    return run(ENGINE, EvalReport, spec, title=title, reads=reads, model=model, corpora=corpora, rows=rows)
