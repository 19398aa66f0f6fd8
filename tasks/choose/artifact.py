"""The artifact of a choice."""

from typing import Any

from baton.infra.tracking.relations import Relation
from baton.tasks.artifacts import Artifact


class Choice(Artifact):
    """`choice.json`: which of several models is the best by one metric, and the metric of each."""

    kind = "choice"
    order = 120
    family = "finding"
    relation = Relation("selected from")
    label: str  # the chosen model's, as are the next three fields
    chosen: str  # digest
    headline: str  # the metric's name
    metrics: dict[str, dict[str, Any]]  # baton.tasks.core.metric.Metric by name
