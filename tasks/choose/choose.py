"""Choose the best of several models by one metric of their evaluations.

    python -m tasks.choose.choose JOB_DIR        inputs: models.0 …, reports.0 …

Out: choice.json with the chosen model's digest and every model's value. The models themselves are not read. Seeds are
not averaged: each model counts by itself. Of models with equal values the first is chosen.
"""

import math
from dataclasses import asdict

from infra.progress import say
from infra.storage.durable import write_json
from tasks.choose.spec import ChooseSpec
from tasks.evaluate.results import Results, read_results
from tasks.job import Job, StageError, main
from tasks.metric import NO_DIRECTION, Metric


def work(job: Job) -> None:
    spec = job.spec(ChooseSpec)
    models = [job.inputs[name]["digest"] for name in job.names("models")]
    evaluations = {evaluation.model_digest: evaluation for evaluation in map(read_results, job.input_list("reports"))}
    measured = {digest: metric_of(evaluation, spec.metric) for digest, evaluation in evaluations.items()}
    candidates = [digest for digest in models if digest in measured]
    if not candidates:
        raise StageError(
            f"{spec.metric}: none of the {len(models)} models was evaluated; add `evaluate:` to the recipe"
        )
    for digest, evaluation in evaluations.items():
        say(f"{evaluation.label}: {spec.metric} {measured[digest]}")
    if measured[candidates[0]].higher_is_better is None:
        raise StageError(f"publish.best: {spec.metric}: name {NO_DIRECTION}")
    best = max(candidates, key=lambda digest: measured[digest].worth())
    if not math.isfinite(measured[best].value):
        finite = [name for name, metric in evaluations[best].metrics.items() if math.isfinite(metric.value)]
        raise StageError(
            f"{spec.metric} is {measured[best].value} for the best of {len(candidates)} models; a number is needed. "
            "Correct its reward or task, or set publish.best to another metric: "
            f"{', '.join(finite) or 'none is a number'}"
        )
    facts = {
        "label": evaluations[best].label,
        "chosen": best,
        "headline": spec.metric,
        "metrics": {spec.metric: asdict(measured[best])},
    }
    values = {evaluations[digest].label: asdict(measured[digest]) for digest in candidates}
    job.empty_output()
    write_json(job.output / "choice.json", {**facts, "values": values})
    job.finish(**facts)


def metric_of(evaluation: Results, name: str) -> Metric:
    """Raises StageError."""
    if name not in evaluation.metrics:
        raise StageError(f"{name!r} is not a metric of the evaluation; it has {', '.join(evaluation.metrics)}")
    return evaluation.metrics[name]


if __name__ == "__main__":
    main(work)
