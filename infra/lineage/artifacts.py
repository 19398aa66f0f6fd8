"""An artifact's name, kind and main fact, from the run that made it."""

from collections.abc import Collection

from sqlalchemy.engine import Connection

from baton.infra.drawing.graph import Artifact
from baton.infra.lineage import facts
from baton.infra.lineage.graph import Graph
from baton.infra.tracking.mlflow_records import SHOWN_TAG

KIND = "baton.output.kind"
MODEL = "model"  # the family


def describe(graph: Graph, connection: Connection, digests: Collection[str]) -> dict[str, Artifact]:
    """Each artifact's name, kind and main fact."""
    makers = {digest: described_by(graph, digest) for digest in digests}
    runs = [run for run in makers.values() if run]
    names = (KIND, f"{SHOWN_TAG}detail", f"{SHOWN_TAG}family", "baton.fact.label", "baton.fact.registry_name")
    tags = facts.tags(connection, runs, *names)
    artifacts = {}
    for digest, run in makers.items():
        kind, detail, family, label, registered = (tags.get(run, {}).get(name) for name in names)
        title = graph.runs[run].title if run else digest[:12]
        known_as = (registered or label) if family == MODEL else None
        shown = detail or (kind or "made elsewhere").replace("_", " ")
        artifacts[digest] = Artifact(digest, kind, known_as or title, shown, family or "other")
    return artifacts


def described_by(graph: Graph, digest: str) -> str:
    """The run that knows an artifact's facts; "" if none is on record."""
    known = graph.maker(digest) or next(iter(graph.uses(digest)), None)
    return known.id if known else ""
