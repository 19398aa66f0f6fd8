"""Choose the best of several models by one metric of their evaluations.

    python -m tasks.choose.choose JOB_DIR        inputs: models.0 …, reports.0 …

Out: the model's files as they are. Each model counts by itself: of several seeds the best single one is taken, and not
a mean. Of equal values the earliest model is taken.
"""

from infra.progress import say
from tasks.choose.spec import ChooseSpec
from tasks.evaluate.results import Results, read_results
from tasks.job import Job, StageError, main
from tasks.manifest import read_manifest
from tasks.metric import Metric
from tasks.publish.copy import copy_model


def work(job: Job) -> None:
    spec = job.spec(ChooseSpec)
    evaluations = [read_results(job.input(name)) for name in job.inputs if name.startswith("reports.")]
    measured = {each.model_digest: metric_of(each, spec.metric) for each in evaluations}
    digests = {name: entry["digest"] for name, entry in job.inputs.items() if name.startswith("models.")}
    found = {name: measured[digest] for name, digest in digests.items() if digest in measured}
    if not found:
        raise StageError(f"{spec.metric}: none of the {len(digests)} models was evaluated; add `evaluate:`")
    for each in evaluations:
        say(f"{each.label}: {spec.metric} {measured[each.model_digest]}")
    best = job.input(max(found, key=lambda name: found[name].worth()))
    copy_model(best, job.output)
    job.finish(**read_manifest(best).facts)


def metric_of(evaluation: Results, name: str) -> Metric:
    """Raises StageError."""
    if name not in evaluation.metrics:
        raise StageError(f"{name!r} is no metric of the evaluation; it has {', '.join(evaluation.metrics)}")
    return evaluation.metrics[name]


if __name__ == "__main__":
    main(work)
