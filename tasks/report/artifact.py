"""The artifact of a report."""

from baton.infra.tracking.relations import Relation
from baton.tasks.artifacts import Artifact


class Report(Artifact):
    """`report.html` and `report.md` of one execution."""

    kind = "report"
    order = 170
    family = "page"
    relation = Relation("reports on")
