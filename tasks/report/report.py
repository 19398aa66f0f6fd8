"""Write `report.html` and `report.md` for an execution, from its artifacts.

No stage is required: the report covers those that the recipe has. The web page has everything, and the Markdown has the
first sections, from the same blocks.
"""

import time
from collections.abc import Mapping

from baton.infra.evaluated import SAMPLES
from baton.infra.text import duration
from baton.infra.tracking.spool import Execution, execution_folder, read_execution, read_stage, stage_folders
from baton.tasks.artifacts import kinds
from baton.tasks.core.job import Job, main
from baton.tasks.evaluate.results import in_model_order, read_results
from baton.tasks.evaluate.samples import EACH, samples
from baton.tasks.evaluate.scores import (
    different_data,
    measured_on,
    overfits,
    score_bars,
    score_table,
    seed_table,
    set_table,
)
from baton.tasks.pages.about import about, heading
from baton.tasks.pages.blocks import Block, Cell, Mark, Notes, Section, Table, Text, Title
from baton.tasks.pages.html import page
from baton.tasks.pages.markdown import markdown
from baton.tasks.pages.source import Source, open_source
from baton.tasks.promote.page import decision
from baton.tasks.report.acceptance_gate import unchanged, verdict
from baton.tasks.report.lineage import RESULT, lineage
from baton.tasks.report.made import what_was_made
from baton.tasks.report.spec import ReportSpec


def work(job: Job) -> None:
    spec = job.spec(ReportSpec)
    sources = []
    for done, name in enumerate(job.inputs):
        job.progress(done, len(job.inputs), "artifacts")
        sources.append(open_source(job.input(name), name.removeprefix("parts.")))
    order = {kind: place for place, kind in enumerate(kinds())}
    sources.sort(key=lambda source: order.get(source.manifest.kind, len(order)))
    job.empty_output()
    html = job.output / "report.html"
    html.write_text(page(spec.title, full_page(spec, sources)), encoding="utf-8")
    places = {entry["digest"]: entry.get("place") or entry["path"] for entry in job.inputs.values()}
    text = markdown(
        [*summary(spec, sources, shown=1, each=2), what_was_made(sources, html, places, job.storage is None)]
    )
    (job.output / "report.md").write_text(text, encoding="utf-8")
    job.finish()


def full_page(spec: ReportSpec, sources: list[Source]) -> list[Block]:
    """Return the blocks of the web page."""
    others = [source for source in sources if source.manifest.kind != "eval_report"]
    pages: list[Block] = [Section(heading(source), about(source, notices=False)) for source in others]
    return [*summary(spec, sources), *_section("Lineage", _lineage(sources)), *pages]


def summary(spec: ReportSpec, sources: list[Source], shown: int = SAMPLES, each: int = EACH) -> list[Block]:
    """Return the first sections: what invalidates the result, results, `shown` sample prompts with `each` completions
    by each model, notes, and times."""
    models = _of_kind(sources, "hf_model")
    evaluations = [read_results(source.directory) for source in _of_kind(sources, "eval_report")]
    results = in_model_order([(model.label, model.manifest.digest) for model in models], evaluations)
    result = [block for source in _of_kind(sources, "decision") for block in decision(source)]
    if results:
        result += [
            *verdict(models, results),
            score_table(results),
            *overfits(results),
            *measured_on(results),
            *seed_table(results),
            *set_table(results),
            *score_bars(results),
        ]
    named = [(source.name, notice) for source in sources for notice in source.notices()]
    wrong = [f"{name}: {notice.text}" for name, notice in named if notice.invalidates]
    wrong += [*unchanged(models), *different_data(results)]
    notes = [*dict.fromkeys(f"{name}: {notice.text}" for name, notice in named if not notice.invalidates)]
    how_many = "1 artifact" if len(sources) == 1 else f"{len(sources)} artifacts"
    return [
        Title(spec.title, " · ".join([*about_execution(spec.execution), how_many])),
        *_section("Read first", [Notes([*dict.fromkeys(wrong)], "bad")] if wrong else []),
        *_section(RESULT, result),
        *_section("What the models write", samples(results, shown, each)),
        *_section("Notes", [Notes(notes, "quiet")] if notes else []),
        *_section("Time", times(spec.execution)),
    ]


def _lineage(sources: list[Source]) -> list[Block]:
    if not sources:
        return []
    names = {source.manifest.digest: source.name for source in sources}
    rows: list[list[Cell]] = [
        [
            source.name,
            source.manifest.kind.replace("_", " "),
            Mark(source.digest, "quiet"),
            ", ".join(names.get(digest, digest[:12]) for digest in source.made_from().values()) or "–",
        ]
        for source in sources
    ]
    return [lineage(sources), Table("Artifacts", ["name", "kind", "digest", "made from"], rows, "llll")]


def _section(title: str, blocks: list[Block]) -> list[Block]:
    return [Section(title, blocks)] if blocks else []


def _of_kind(sources: list[Source], kind: str) -> list[Source]:
    return [source for source in sources if source.manifest.kind == kind]


def about_execution(execution_id: str) -> list[str]:
    """Return the parts of the report's subtitle."""
    execution = _find(execution_id)
    if execution is None:
        return []
    code = execution.code
    changed = " with changes" if code.get("dirty") == "true" else ""
    return [
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(execution.started)),
        f"execution {execution_id}",
        f"{_commit(code)}{changed}",
    ]


def _commit(code: Mapping[str, str]) -> str:
    commit = code.get("commit", "unknown")
    return "code in no Git checkout" if commit in ("unknown", "none") else f"commit {commit[:10]}"


def times(execution_id: str) -> list[Block]:
    """Return a table with a row for each finished stage, by start time; empty without an execution."""
    if not execution_id:
        return []
    execution = _find(execution_id)
    if execution is None:
        return [Text(f"The times of execution {execution_id} are not on this machine.", "quiet")]
    runs = sorted(map(read_stage, stage_folders(execution_folder(execution_id))), key=lambda run: run.started)
    ended = [(run, run.ended) for run in runs if run.ended is not None]
    rows: list[list[Cell]] = [
        [
            run.title,
            duration(end - run.started),
            Mark("from the cache" if run.cached else run.status.lower(), "quiet"),
        ]
        for run, end in ended
    ]
    if ended:
        total = duration(max(end for _, end in ended) - execution.started)
        rows.append([Mark("total so far", "best"), Mark(total, "best"), ""])
    return [Table("Stages of this execution", ["stage", "time", "status"], rows, "lrl")]


def _find(execution_id: str) -> Execution | None:
    folder = execution_folder(execution_id)
    return read_execution(folder) if execution_id and (folder / "execution.json").exists() else None


if __name__ == "__main__":
    main(work)
