"""The artifact of a choice."""

from typing import Any

from infra.tracking.relations import Relation
from tasks.artifacts import Artifact


class Choice(Artifact):
    """`choice.json`: which of several models is the best by one metric, and the metric of each."""

    kind = "choice"
    order = 120
    family = "finding"
    relation = Relation("selected from")
    label: str  # the chosen model's, as are the next three fields
    chosen: str  # digest
    headline: str  # the metric's name
    metrics: dict[str, dict[str, Any]]  # tasks.core.metric.Metric by name
