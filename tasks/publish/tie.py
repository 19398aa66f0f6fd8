"""Say when the best of a run's models is only the first of several equal ones."""

from collections.abc import Sequence

from tasks.core.manifest import Manifest
from tasks.core.metric import metrics_of


def tie(by: str | None, label: str, digest: str, reports: Sequence[Manifest]) -> str:
    """A notice that names the models with the same value of the metric `by` as the chosen one; empty if there is none.
    `reports`: the evaluations, in the run's order."""
    values = {
        (str(report.facts["label"]), str(report.facts["model_digest"])): metrics_of(report.facts).get(by or "")
        for report in reports
    }
    best = values.get((label, digest))
    if best is None:
        return ""
    equal = [other for (other, _), metric in values.items() if metric and metric.worth() == best.worth()]
    if len(equal) < 2:
        return ""
    return (
        f"publish.best: {', '.join(equal[:-1])} and {equal[-1]} have the same {by}, {best}; {label} was chosen, as the "
        "first of these in the run's order. For another one, name a metric in which they differ, or leave publish.best "
        "out for the last model"
    )
