"""Choose the best of several models by one metric of their evaluations.

    python -m tasks.choose.choose JOB_DIR        inputs: models.0 …, reports.0 …

Out: the model's files as they are. Of equal values the earliest model is taken.
"""

import json
from pathlib import Path
from typing import Any

from tasks.choose.spec import ChooseSpec
from tasks.job import Job, StageError, main
from tasks.manifest import read_manifest
from tasks.publish.copy import copy_model


def work(job: Job) -> None:
    spec = job.spec(ChooseSpec)
    models = [name for name in job.inputs if name.startswith("models.")]
    reports = [job.input(name) for name in job.inputs if name.startswith("reports.")]
    found = {str(read_manifest(each).facts["model_digest"]): metric_of(each, spec.metric) for each in reports}
    known = [name for name in models if job.inputs[name]["digest"] in found]
    if not known:
        raise StageError(f"{spec.metric}: none of the {len(models)} models was evaluated; add `evaluate:`")

    def worth(name: str) -> float:
        metric = found[job.inputs[name]["digest"]]
        return float(metric["value"]) if metric["higher_is_better"] else -float(metric["value"])

    best = job.input(max(known, key=worth))
    for name in known:
        metric, label = found[job.inputs[name]["digest"]], read_manifest(Path(job.inputs[name]["path"])).facts["label"]
        print(f"{label}: {spec.metric} {metric['value']:.4g}", flush=True)
    copy_model(best, job.output)
    job.finish(**read_manifest(best).facts)


def metric_of(report: Path, name: str) -> dict[str, Any]:
    """A metric of an evaluation's report. Raises StageError."""
    metrics: dict[str, dict[str, Any]] = json.loads((report / "report.json").read_text())["metrics"]
    if name not in metrics:
        raise StageError(f"{name!r} is no metric of the evaluation; it has {', '.join(metrics)}")
    return metrics[name]


if __name__ == "__main__":
    main(work)
