"""Say why a model was published: it is the run's last, or the best by a metric, alone or among equals."""

from collections.abc import Sequence

from baton.infra.text import measure, plus_minus
from baton.tasks.core.manifest import Manifest
from baton.tasks.core.metric import Metric, metrics_of

UNTUNED = "base"  # label of the model that the run's tuning starts from
ADVICE = "For another one, name a metric in which they differ, or leave publish.best out for the last model"


def why(by: str | None, label: str, digest: str, reports: Sequence[Manifest]) -> str:
    """Return a clause about the choice of the published model, such as "sft has the best sums.right of 4 models, 0.8".
    `by` is `publish.best`, and `reports` are the evaluations, in the run's order."""
    if by is None:
        return f"{label} is the run's last model"
    if tied := tie(by, label, digest, reports):
        return tied
    values = _values(by, reports)
    untuned = f"; no tuned model is better than {label}" if label == UNTUNED and len(values) > 1 else ""
    metric = values.get((label, digest))
    return f"{label} has the best {by} of {len(values)} models{f', {_shown(metric)}' if metric else ''}{untuned}"


def tie(by: str | None, label: str, digest: str, reports: Sequence[Manifest]) -> str:
    """Return a clause with the names of the models that are equal in the metric `by`, if the published one is only the
    first of several; else empty text."""
    values = _values(by or "", reports)
    best = values.get((label, digest))
    if best is None:
        return ""
    equal = [other for (other, _), metric in values.items() if metric.worth() == best.worth()]
    if len(equal) < 2:
        return ""
    untuned = ", and was not tuned by this run" if label == UNTUNED else ""
    return (
        f"{', '.join(equal[:-1])} and {equal[-1]} have the same {by}, {_shown(best)}; {label} is the first of these in "
        f"the run's order{untuned}"
    )


def _shown(metric: Metric) -> str:
    return plus_minus(measure(metric.value, metric.unit), metric.standard_error, metric.unit)


def _values(by: str, reports: Sequence[Manifest]) -> dict[tuple[str, str], Metric]:
    """Return the metric of each evaluated model that has it, by the model's label and digest."""
    measured = {
        (str(report.facts["label"]), str(report.facts["model_digest"])): metrics_of(report.facts) for report in reports
    }
    return {model: metrics[by] for model, metrics in measured.items() if by in metrics}
