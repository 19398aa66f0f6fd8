"""The last node: the report of one execution."""

from baton import images
from baton.infra.pod import this_pod
from baton.infra.process.launch import Engine
from baton.infra.tracking.execution import mark_last
from baton.tasks.artifacts import Artifact
from baton.tasks.cached_stages import note_used
from baton.tasks.core.manifest import ALL_AND_RECORD
from baton.tasks.evaluate.artifact import EvalReport
from baton.tasks.models.artifact import HFModel
from baton.tasks.pages.source import PAGE_FILES
from baton.tasks.report.artifact import Report
from baton.tasks.report.spec import ReportSpec
from baton.tasks.run import run
from baton.tasks.stage import stage
from baton.tasks.stage_job import Reads

ENGINE = Engine("report", "baton.tasks.report.report", version="3")


@stage(ENGINE, image=images.DATA, cached=False, reports_on=("models", "reports", "parts"))
def report(spec: ReportSpec, models: list[HFModel], reports: list[EvalReport], parts: dict[str, Artifact]) -> Report:
    """Make report.html and report.md from the models, their evaluations, and all other artifacts by name, and print
    report.md."""
    if "decision" not in parts:  # continuous training goes on after its report
        mark_last()
    if this_pod():
        note_used([*parts.values(), *models, *reports])
    files = {"models": PAGE_FILES, "parts": PAGE_FILES, "reports": ALL_AND_RECORD}
    artifact = run(ENGINE, Report, spec, reads=Reads(files), models=models, reports=reports, parts=parts)
    print((artifact.local(("report.md",)) / "report.md").read_text(encoding="utf-8"))
    return artifact
