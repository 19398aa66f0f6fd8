"""The artifact of an evaluation."""

from typing import Any

from baton.infra.text import measure
from baton.infra.tracking.relations import Relation
from baton.tasks.artifacts import Artifact


class EvalReport(Artifact):
    """`report.json`, `documents.jsonl` and `completions.jsonl` of one model."""

    kind = "eval_report"
    order = 110
    family = "finding"
    relation = Relation("measured")
    page = "baton.tasks.evaluate.page:evaluation"
    label: str
    model_digest: str
    metrics: dict[str, dict[str, Any]]  # name -> fields of a baton.tasks.core.metric.Metric
    headline: str = ""  # name of the main metric: the first evaluator's first, or bits per byte
    measured: dict[str, str] = {}  # "bits_per_byte" or an evaluator's name -> description of the data

    def title(self, stage: str) -> str:
        return f"{stage}-{self.label}"

    def detail(self) -> str:
        metric = self.metrics.get(self.headline)
        return f"{self.headline} {measure(metric['value'], metric['unit'])}" if metric else super().detail()
