"""The engine: one `report.html` and one `report.md` for an execution, from its artifacts.

Whatever stages the recipe had are shown; none is needed. The web page has everything, the Markdown
is its beginning: the same blocks, so the same numbers.
"""

from pathlib import Path

from infra.tracking.store import tracking_hint
from tasks.job import Job, main
from tasks.report.bar import verdict
from tasks.report.blocks import Block, Cell, List, Mark, Section, Table, Title
from tasks.report.decision import decision
from tasks.report.html import page
from tasks.report.lineage import lineage
from tasks.report.markdown import markdown
from tasks.report.samples import SHOWN, samples
from tasks.report.scores import score_bars, score_table, seed_table, set_table
from tasks.report.source import Source, open_source
from tasks.report.spec import ReportSpec
from tasks.report.stages import about, heading
from tasks.report.times import about_execution, times

RUN = "pyflyte run workflows/pretrain_to_rl.py pretrain_to_rl"


def work(job: Job) -> None:
    spec = job.spec(ReportSpec)
    sources = []
    for done, name in enumerate(job.inputs):
        job.progress(done, len(job.inputs), "artifacts")
        sources.append(open_source(job.input(name), name))
    job.empty_output()
    html = job.output / "report.html"
    html.write_text(page(spec.title, whole(spec, sources)), encoding="utf-8")
    text = markdown([*summary(spec, sources, shown=1), where_next(sources, html)])
    (job.output / "report.md").write_text(text, encoding="utf-8")
    job.finish()


def whole(spec: ReportSpec, sources: list[Source]) -> list[Block]:
    """The web page."""
    evaluations = _of_kind(sources, "eval_report")
    pages: list[Block] = [Section(heading(each), about(each)) for each in sources if each not in evaluations]
    return [*summary(spec, sources), *_section("Lineage", _lineage(sources)), *pages]


def summary(spec: ReportSpec, sources: list[Source], shown: int = SHOWN) -> list[Block]:
    """What a person wants to know first; `shown` sample prompts."""
    evaluations = _of_kind(sources, "eval_report")
    result = [block for each in _of_kind(sources, "decision") for block in decision(each)]
    if evaluations:
        result += [
            *verdict(_of_kind(sources, "hf_model"), evaluations),
            score_table(evaluations),
            *seed_table(evaluations),
            *set_table(evaluations),
            *score_bars(evaluations),
        ]
    how_many = "1 artifact" if len(sources) == 1 else f"{len(sources)} artifacts"
    return [
        Title(spec.title, " · ".join([*about_execution(spec.execution), how_many])),
        *_section("Result", result),
        *_section("What the models write", samples(evaluations, shown)),
        *_section("Time", times(spec.execution)),
    ]


def where_next(sources: list[Source], html: Path) -> Section:
    """The last lines on the terminal."""
    items = [("Report:", str(html))]
    items += [("Published model:", str(each.directory)) for each in _of_kind(sources, "published_model")]
    items += [("Every number over time:", tracking_hint())]
    if _of_kind(sources, "decision"):
        names = {each.manifest.facts["registry_name"] for each in _of_kind(sources, "published_model")}
        items += [("To turn the champion back:", f"python -m workflows.rollback {name}") for name in names]
        return Section("Where to look next", [List(items)])
    items += [
        (
            "To run a changed copy of the recipe (what it does not touch comes from the cache):",
            f"{RUN} --recipe mine.yaml",
        )
    ]
    return Section("Where to look next", [List(items)])


def _lineage(sources: list[Source]) -> list[Block]:
    if not sources:
        return []
    names = {each.manifest.digest: each.name for each in sources}
    rows: list[list[Cell]] = [
        [
            each.name,
            each.manifest.kind.replace("_", " "),
            Mark(each.digest, "quiet"),
            ", ".join(names.get(digest, digest[:12]) for digest in each.manifest.parents.values()) or "–",
        ]
        for each in sources
    ]
    return [lineage(sources), Table("Artifacts", ["name", "kind", "digest", "made from"], rows, "llll")]


def _section(title: str, blocks: list[Block]) -> list[Block]:
    return [Section(title, blocks)] if blocks else []


def _of_kind(sources: list[Source], kind: str) -> list[Source]:
    return [each for each in sources if each.manifest.kind == kind]


if __name__ == "__main__":
    main(work)
