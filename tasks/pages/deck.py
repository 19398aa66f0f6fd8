"""Render the Flyte Deck of a stage: the page of the artifact that it made."""

from pathlib import Path

from markupsafe import Markup

from baton.tasks.pages.about import about, heading
from baton.tasks.pages.blocks import Section
from baton.tasks.pages.html import fragment
from baton.tasks.pages.source import open_source

REPORT_FRAME = Markup('<iframe title="Report" sandbox srcdoc="{}" style="width:100%;height:95vh;border:0"></iframe>')


def stage_page(output: Path) -> str:
    """Return an HTML fragment about the artifact in `output`. Raises ArtifactError if there is none."""
    source = open_source(output)
    if source.manifest.kind == "report":
        return str(REPORT_FRAME.format((output / "report.html").read_text(encoding="utf-8")))
    return fragment([Section(heading(source), about(source))])
