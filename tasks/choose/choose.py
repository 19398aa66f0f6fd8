"""Choose the best of several models by one metric of their evaluations.

    python -m baton.tasks.choose.choose JOB_DIR        inputs: models.0 …, reports.0 …

Out: choice.json with the chosen model's digest and every model's value. Only the manifests of the models are
read. Seeds are not averaged: each model counts by itself. Of models with equal values the first is chosen.
With `before_tuning` there is one model, which exists before anything is trained: its evaluation has the names of the
metrics of lm-eval's tasks, which are not known before the run.
"""

import math
from dataclasses import asdict
from pathlib import Path

from baton.infra.progress import say
from baton.infra.storage.durable import write_json
from baton.tasks.choose.spec import ChooseSpec
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.manifest import read_manifest
from baton.tasks.core.metric import NO_DIRECTION, Metric
from baton.tasks.evaluate.results import Results, in_model_order, read_results


def work(job: Job) -> None:
    spec = job.spec(ChooseSpec)
    opened = [read_manifest(Path(job.inputs[name]["path"])) for name in job.names("models")]
    labels = [(str(model.facts["label"]), model.digest) for model in opened]
    digests = {digest for _, digest in labels}
    evaluations = in_model_order(labels, map(read_results, job.input_list("reports")))
    candidates = [evaluation for evaluation in evaluations if evaluation.model_digest in digests]
    if not candidates:
        raise StageError(
            f"{spec.metric}: none of the {len(opened)} models was evaluated; add `evaluate:` to the recipe"
        )
    measured = {evaluation.label: metric_of(evaluation, spec) for evaluation in candidates}
    for label, metric in measured.items():
        say(f"{label}: {spec.metric} {metric}")
    if measured[candidates[0].label].higher_is_better is None:
        raise StageError(f"{spec.field}: {spec.metric}: name {NO_DIRECTION}")
    best = max(candidates, key=lambda evaluation: measured[evaluation.label].worth())
    metric = measured[best.label]
    if not math.isfinite(metric.value) and not spec.before_tuning:  # a tuned model's may be
        finite = [name for name, metric in best.metrics.items() if math.isfinite(metric.value)]
        raise StageError(
            f"{spec.metric} is {metric.value} for the best of {len(candidates)} models; a number is needed. "
            f"Correct its reward or task, or set {spec.field} to another metric: "
            f"{', '.join(finite) or 'none is a number'}"
        )
    facts = {
        "label": best.label,
        "chosen": best.model_digest,
        "headline": spec.metric,
        "metrics": {spec.metric: asdict(metric)},
    }
    job.empty_output()
    write_json(
        job.output / "choice.json", {**facts, "values": {name: asdict(value) for name, value in measured.items()}}
    )
    job.finish(**facts)


def metric_of(evaluation: Results, spec: ChooseSpec) -> Metric:
    """Raises StageError."""
    if spec.metric not in evaluation.metrics:
        raise StageError(
            f"{spec.field}: {spec.metric!r} is not a metric of the evaluation; set one of "
            f"{', '.join(evaluation.metrics)}"
        )
    return evaluation.metrics[spec.metric]


if __name__ == "__main__":
    main(work)
