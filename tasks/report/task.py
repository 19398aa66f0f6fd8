"""The last node: the report of one execution."""

from typing import Any

import images
from infra.launch import Engine
from infra.pod import this_pod
from infra.tracking.execution import is_last, note_cached
from tasks.artifacts import (
    Artifact,
    ConversionAudit,
    Corpus,
    Decision,
    Endpoint,
    EvalReport,
    HFModel,
    MegatronCheckpoint,
    PublishedModel,
    Report,
    Rows,
    TokenizedCorpus,
    Tokenizer,
)
from tasks.report.spec import ReportSpec
from tasks.stage import run, stage

ENGINE = Engine("report", "tasks.report.report", version="1")


@stage(ENGINE, image=images.DATA, cached=False)
def report(
    spec: ReportSpec,
    models: list[HFModel],
    reports: list[EvalReport],
    corpus: Corpus | None = None,
    rows: list[Rows] | None = None,
    tokenizer: Tokenizer | None = None,
    shards: TokenizedCorpus | None = None,
    checkpoint: MegatronCheckpoint | None = None,
    audit: ConversionAudit | None = None,
    published: PublishedModel | None = None,
    more_corpora: list[Corpus] | None = None,
    more_shards: list[TokenizedCorpus] | None = None,
    decision: Decision | None = None,
    endpoint: Endpoint | None = None,
) -> Report:
    """Makes report.html and report.md of whatever stages there were, and prints the latter."""
    if decision is None:  # a continuous training goes on after it
        is_last()
    named: dict[str, Any] = {
        "corpus": corpus,
        **{f"corpus_{number}": each for number, each in enumerate(more_corpora or [], 2)},
        **{f"rows_{number}": each for number, each in enumerate(rows or [], 1)},
        "tokenizer": tokenizer,
        "shards": shards,
        **{f"shards_{number}": each for number, each in enumerate(more_shards or [], 2)},
        "pretrain": checkpoint,
        "audit": audit,
        **{model.label: model for model in models},
        "decision": decision,
        "endpoint": endpoint,
        "published": published,
        **{f"eval_{each.label}": each for each in reports},
    }
    named = {name: artifact for name, artifact in named.items() if artifact}
    if this_pod():
        for name, artifact in named.items():
            _note(name, artifact)
    made = run(ENGINE, Report, spec, **named)
    print((made.local() / "report.md").read_text(encoding="utf-8"))
    return made


def _note(name: str, artifact: Artifact) -> None:
    """On a cluster what Flyte's cache has needs no pod, so nobody else says that it served this execution; of what a
    pod of it has made there is a record (infra/tracking/push.py)."""
    title = {"base": "convert"}.get(name, name.replace("_", "-"))
    if isinstance(artifact, EvalReport):
        title = artifact.title("evaluate")
    manifest = artifact.manifest()
    note_cached(title, artifact.kind, artifact.digest, artifact.facts(), spec=manifest.spec, inputs=manifest.parents)
