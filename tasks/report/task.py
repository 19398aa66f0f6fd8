"""The last node: the report of one execution."""

import images
from infra.launch import Engine
from infra.pod import this_pod
from infra.tracking.execution import mark_last, note_cached
from tasks.artifacts import Artifact, EvalReport, HFModel, Report
from tasks.report.spec import ReportSpec
from tasks.run import run
from tasks.stage import stage

ENGINE = Engine("report", "tasks.report.report", version="1")


@stage(ENGINE, image=images.DATA, cached=False, describes=("models", "reports", "parts"))
def report(spec: ReportSpec, models: list[HFModel], reports: list[EvalReport], parts: dict[str, Artifact]) -> Report:
    """Make report.html and report.md of the models, their evaluations, and all other artifacts by name; print the
    latter."""
    if "decision" not in parts:  # continuous training goes on after its report
        mark_last()
    if this_pod():
        _note([*parts.values(), *models, *reports])
    made = run(ENGINE, Report, spec, models=models, reports=reports, parts=parts)
    print((made.local() / "report.md").read_text(encoding="utf-8"))
    return made


def _note(used: list[Artifact]) -> None:
    """Record that this execution used artifacts, each after those it was made from. On a cluster, a stage that is
    served from Flyte's cache gets no pod that could do so; if a pod made the artifact, its own record takes precedence
    (infra/tracking/push.py)."""
    manifests = {artifact.digest: artifact.manifest() for artifact in used}
    noted: set[str] = set()

    def note(digest: str) -> None:
        manifest = manifests.get(digest)
        if manifest is None or digest in noted:
            return
        noted.add(digest)
        for parent in manifest.parents.values():
            note(parent)
        title = manifest.title or manifest.kind  # of an earlier version
        note_cached(title, manifest.kind, digest, manifest.facts, spec=manifest.spec, inputs=manifest.parents)

    for digest in manifests:
        note(digest)
