"""An artifact's name, kind and main fact, from the run that made it."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection

from infra.lineage import facts
from infra.lineage.graph import Graph
from infra.text import count, measure, number, share
from infra.tracking.mlflow_records import OUTPUT

MODELS = ("hf_model", "published_model")
FACT = OUTPUT  # numbers among an artifact's facts are metrics of the run that made it

# the main fact of each kind
_DETAILS = {
    "corpus": ("documents", lambda value: f"{number(value)} documents"),
    "rows": ("rows", lambda value: f"{number(value)} rows"),
    "reward_check": ("rewards", lambda value: f"{number(value)} rewards"),
    "tokenizer": ("vocab_size", lambda value: f"{number(value)} tokens"),
    "tokenized_corpus": ("tokens", lambda value: f"{count(value)} tokens"),
    "megatron_checkpoint": ("step", lambda value: f"step {number(value)}"),
    "megatron_weights": ("parameters", lambda value: f"{count(value)} weights"),
    "hf_model": ("parameters", lambda value: f"model, {count(value)}"),
    "published_model": ("registry_version", lambda value: f"version {number(value)}"),
    "endpoint": ("tokens_per_s", lambda value: f"{number(value)} tokens/s"),
    "conversion_audit": ("argmax_agreement", lambda value: f"{share(value)} agree"),
    "decision": ("improvement", lambda value: f"{100 * value:+.1f} %"),
}


@dataclass(frozen=True)
class Artifact:
    """Of an artifact whose maker is not on record, `kind` is None and `name` the start of the digest."""

    digest: str
    kind: str | None
    name: str  # base, chat, …, or the title of the stage that made it
    detail: str


def describe(graph: Graph, connection: Connection, digests: Collection[str]) -> dict[str, Artifact]:
    """Each artifact's name, kind and main fact."""
    makers = {digest: _described_by(graph, digest) for digest in digests}
    runs = [run for run in makers.values() if run]
    names = ("baton.output.kind", "baton.fact.label", "baton.fact.registry_name", facts.HEADLINE)
    tags = facts.tags(connection, runs, *names)
    headlines = {run: of[facts.HEADLINE] for run, of in tags.items() if facts.HEADLINE in of}
    wanted = {name for name, _ in _DETAILS.values()} | set(headlines.values())
    measured = facts.metrics(connection, runs, *{FACT + name for name in wanted})
    units = facts.units(connection, headlines)
    found = {}
    for digest, run in makers.items():
        kind, label, registered, headline = (tags.get(run, {}).get(name) for name in names)
        title = graph.runs[run].title if run else digest[:12]
        name, format_detail = _DETAILS.get(kind or "", ("", str))
        value = measured.get(run, {}).get(FACT + (headline or name))
        if value is None:
            detail = (kind or "made elsewhere").replace("_", " ")
        elif headline:
            detail = f"{headline} {measure(value, units[run].get(headline, facts.Unit()).unit)}"
        else:
            detail = format_detail(value)
        known_as = (registered or label) if kind in MODELS else None
        found[digest] = Artifact(digest, kind, known_as or title, detail)
    return found


def _described_by(graph: Graph, digest: str) -> str:
    """The run that knows an artifact's facts; "" if none is on record."""
    known = graph.maker(digest) or next(iter(graph.uses(digest)), None)
    return known.id if known else ""


def all_facts(tags: dict[str, str], metrics: dict[str, float]) -> dict[str, Any]:
    """The facts that a stage recorded about its artifact."""
    numbers = {name.removeprefix(FACT): value for name, value in metrics.items() if name.startswith(FACT)}
    return facts.group(tags, "fact") | numbers
