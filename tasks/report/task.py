"""The last node: the report of one execution."""

import images
from infra.launch import Engine
from infra.pod import this_pod
from infra.tracking.execution import mark_last, note_cached
from tasks.artifacts import Artifact, EvalReport, HFModel, Report
from tasks.report.spec import ReportSpec
from tasks.stage import run, stage

ENGINE = Engine("report", "tasks.report.report", version="1")


@stage(ENGINE, image=images.DATA, cached=False)
def report(spec: ReportSpec, models: list[HFModel], reports: list[EvalReport], parts: dict[str, Artifact]) -> Report:
    """Make report.html and report.md of the models, their evaluations, and all other artifacts by name; print the
    latter."""
    if "decision" not in parts:  # continuous training goes on after its report
        mark_last()
    if this_pod():
        named = parts | {{"base": "convert"}.get(model.label, model.label): model for model in models}
        for name, artifact in (named | {evaluation.title("evaluate"): evaluation for evaluation in reports}).items():
            _note(name.replace("_", "-"), artifact)
    made = run(ENGINE, Report, spec, models=models, reports=reports, parts=parts)
    print((made.local() / "report.md").read_text(encoding="utf-8"))
    return made


def _note(title: str, artifact: Artifact) -> None:
    """Record that this execution used an artifact. On a cluster, a stage that is served from Flyte's cache gets no pod
    that could do so; if a pod made the artifact, its own record takes precedence (infra/tracking/push.py)."""
    manifest = artifact.manifest()
    note_cached(title, manifest.kind, manifest.digest, manifest.facts, spec=manifest.spec, inputs=manifest.parents)
