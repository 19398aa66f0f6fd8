"""Choose the best of several models by one metric of their evaluations.

    python -m tasks.choose.choose JOB_DIR        inputs: models.0 …, reports.0 …

Out: the model's files, unchanged. Seeds are not averaged: each model counts by itself. Of models with equal values the
first is chosen.
"""

from infra.progress import say
from tasks.adapted import Model
from tasks.choose.spec import ChooseSpec
from tasks.evaluate.results import Results, read_results
from tasks.job import Job, StageError, main
from tasks.manifest import read_manifest
from tasks.metric import Metric
from tasks.publish.copy import copy_model


def work(job: Job) -> None:
    spec = job.spec(ChooseSpec)
    evaluations = [read_results(path) for path in job.input_list("reports")]
    measured = {evaluation.model_digest: metric_of(evaluation, spec.metric) for evaluation in evaluations}
    digests = {name: job.inputs[name]["digest"] for name in job.names("models")}
    found = {name: measured[digest] for name, digest in digests.items() if digest in measured}
    if not found:
        raise StageError(
            f"{spec.metric}: none of the {len(digests)} models was evaluated; add `evaluate:` to the recipe"
        )
    for evaluation in evaluations:
        say(f"{evaluation.label}: {spec.metric} {measured[evaluation.model_digest]}")
    best = job.input(max(found, key=lambda name: found[name].worth()))
    copy_model(Model(best, best), job.output)
    job.finish(**read_manifest(best).facts)


def metric_of(evaluation: Results, name: str) -> Metric:
    """Raises StageError."""
    if name not in evaluation.metrics:
        raise StageError(f"{name!r} is not a metric of the evaluation; it has {', '.join(evaluation.metrics)}")
    return evaluation.metrics[name]


if __name__ == "__main__":
    main(work)
