"""Lineage from Python:

    from baton.infra.lineage.api import Lineage

    lineage = Lineage()                        # the store of MLFLOW_TRACKING_URI, by default Baton's
    lineage.ancestors("3f2a…")                 # artifacts and runs, nearest first
    lineage.diff(model_a, model_b).config      # differences between their histories
    lineage.export("3f2a…")                    # OpenLineage events

A digest may be shortened to 6 characters or more; an unknown one raises UnknownNode.
"""

from typing import Any

from baton.infra.drawing.graph import Artifact
from baton.infra.lineage.ancestry import Run
from baton.infra.lineage.artifacts import describe
from baton.infra.lineage.database import open_database
from baton.infra.lineage.diff import Difference, difference
from baton.infra.lineage.graph import Graph
from baton.infra.lineage.openlineage import events


class Lineage:
    """The lineage in one store."""

    def __init__(self, store: str | None = None) -> None:
        """`store`: MLflow's database, sqlite:///… or postgresql://…. Raises LineageUnavailable."""
        self.engine = open_database(store)
        self.graph = Graph(self.engine)

    def ancestors(self, digest: str) -> list[Artifact | Run]:
        """Upstream artifacts and runs, nearest first."""
        graph = self.graph.refresh()
        return self._described(graph.ancestry.ancestors(graph.resolve(digest)))

    def descendants(self, digest: str) -> list[Artifact | Run]:
        """Downstream artifacts and runs, nearest first."""
        graph = self.graph.refresh()
        return self._described(graph.ancestry.descendants(graph.resolve(digest)))

    def path(self, a: str, b: str) -> list[Artifact | Run]:
        """Every node between two artifacts, both included, parents first; empty when neither is upstream of the
        other."""
        graph = self.graph.refresh()
        return self._described(graph.ancestry.path(graph.resolve(a), graph.resolve(b)))

    def diff(self, a: str, b: str) -> Difference:
        """Compare the histories of two artifacts."""
        graph = self.graph.refresh()
        with self.engine.connect() as connection:
            return difference(graph, connection, graph.resolve(a), graph.resolve(b))

    def export(self, digest: str | None = None, execution: str | None = None) -> list[dict[str, Any]]:
        """OpenLineage events of an artifact's history, of an execution, or of the whole store."""
        graph = self.graph.refresh()
        if digest is not None:
            runs = graph.ancestry.history(graph.resolve(digest))
        elif execution is not None:
            runs = [run.id for run in graph.stages(execution)]
        else:
            runs = list(graph.runs)
        with self.engine.connect() as connection:
            return events(graph, connection, runs)

    def _described(self, nodes: list[str]) -> list[Artifact | Run]:
        graph = self.graph
        with self.engine.connect() as connection:
            known = describe(graph, connection, [node for node in nodes if node not in graph.runs])
        return [graph.runs[node] if node in graph.runs else known[node] for node in nodes]
