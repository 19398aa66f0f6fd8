"""What each page shows, as data: the template renders it, and its JSON twin is it.

Keys that begin with "_" are drawings; the JSON twin leaves them out.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from sqlalchemy import Engine
from sqlalchemy.engine import Connection

from infra.charts import curves
from infra.lineage import again, facts, files, view
from infra.lineage.artifacts import FACT, all_facts, describe
from infra.lineage.compare import choices, comparison
from infra.lineage.draw import Marks, draw
from infra.lineage.graph import Execution, Graph, UnknownNode
from infra.lineage.lines import artifact_line, execution_line, execution_rows, findings, progress, run_line
from infra.lineage.registry import registered, versions_of
from infra.tracking.machine import flyte_page

A_PAGE = 50  # executions

Query = Mapping[str, str]
Page = dict[str, Any]


class Pages:
    """The pages of one store, under the address `mount`."""

    def __init__(self, engine: Engine, mount: str) -> None:
        self.engine, self.mount = engine, mount
        self.graph = Graph(engine)

    def executions(self, query: Query) -> Page:
        """All executions, newest first; `q` has words that must all match, `state` is a status."""
        graph, state = self.graph.refresh(), query.get("state", "")
        found = sorted(graph.executions.values(), key=lambda each: (-each.started, each.id))
        with self.engine.connect() as connection:
            for word in query.get("q", "").split():
                found = self._matching(connection, found, word)
            found = [each for each in found if state in ("", each.status)]
            pages = max(1, -(-len(found) // A_PAGE))
            page = min(max(1, _int(query.get("page"), 1)), pages)
            shown = found[(page - 1) * A_PAGE : page * A_PAGE]
            rows = execution_rows(graph, connection, shown)
        return {
            "title": "Executions",
            "q": query.get("q", ""),
            "state": state,
            "states": sorted({each.status for each in graph.executions.values()}),
            "total": len(graph.executions),
            "matching": len(found),
            "page": page,
            "pages": pages,
            "executions": rows,
            "live": any(each.live for each in shown),
        }

    def execution(self, id: str, query: Query) -> Page:
        graph = self.graph.refresh()
        execution, stages = self._execution(id), graph.stages(id)
        with self.engine.connect() as connection:
            (row,) = execution_rows(graph, connection, [execution])
            tags = facts.tags(connection, [execution.run_id])[execution.run_id]
            named = describe(graph, connection, {run.output for run in stages if run.output})
            errors = facts.tags(connection, [run.id for run in stages], "baton.error")
            boxes = view.of_execution(graph, id, query.get("open", "").split(), _limit(query, view.MOST))
            drawing = self._draw(connection, boxes, Marks(), f"The stages of {execution.name}", query)
            page = {
                "recipe": facts.params(connection, [execution.run_id]).get(execution.run_id, {}),
                "mlflow": facts.mlflow_page(connection, execution.run_id),
            }
        made = {run.id: artifact_line(named[run.output]) if run.output else None for run in stages}
        return page | {
            **row,
            "title": execution.name,
            "code": again.code(tags),
            "command": tags.get("mlflow.source.name", ""),
            "again": again.commands(tags, id),
            "links": {"Flyte": flyte_page(tags.get("baton.flyte", ""))} | facts.group(tags, "link"),
            "stages": [
                run_line(run) | {"made": made[run.id], "error": errors.get(run.id, {}).get("baton.error")}
                for run in stages
            ],
            "_graph": drawing,
        }

    def recipe(self, id: str) -> Any:
        """The recipe of an execution, as `pyflyte run --recipe` takes it."""
        self.graph.refresh()
        run = self._execution(id).run_id
        with self.engine.connect() as connection:
            return again.recipe(facts.params(connection, [run]).get(run, {}))

    def run(self, id: str, query: Query) -> Page:
        graph = self.graph.refresh()
        if id not in graph.runs:
            raise UnknownNode(f"{id}: no run has this id")
        run, inputs = graph.runs[id], graph.inputs(id)
        with self.engine.connect() as connection:
            tags = facts.tags(connection, [id]).get(id, {})
            measured = facts.metrics(connection, [id]).get(id, {})
            points = facts.curves(connection, id)
            named = describe(graph, connection, {*inputs.values(), *graph.children(id)})
            page = {
                "spec": facts.params(connection, [id]).get(id, {}),
                "mlflow": facts.mlflow_page(connection, id),
            }
        return page | {
            **run_line(run),
            "execution": execution_line(graph, run.execution),
            "error": tags.get("baton.error"),
            "inputs": [{"as": name, **artifact_line(named[digest])} for name, digest in inputs.items()],
            "made": artifact_line(named[run.output]) if run.output else None,
            "progress": progress(run, tags) if run.live else None,
            "cost_usd": facts.cost(tags, measured, run.took),
            "machine": facts.group(tags, "machine"),
            "placed": facts.group(tags, "placed"),
            "code": again.code(tags),
            "versions": facts.group(tags, "version"),
            "command": tags.get("baton.command", ""),
            "metrics": {name: value for name, value in sorted(measured.items()) if not name.startswith(FACT)},
            "curves": points,
            "log": files.log(tags.get("baton.job")),
            "live": run.live,
            "_curves": [curves(name, {name: each}).svg for name, each in points.items()],
        }

    def artifact(self, digest: str, query: Query) -> Page:
        """`to` names another artifact: the way between the two is marked."""
        graph = self.graph.refresh()
        digest = graph.resolve(digest)
        to = graph.resolve(query["to"]) if query.get("to") else None
        makers, uses = graph.parents(digest), graph.uses(digest)
        way = graph.path(digest, to) if to else []
        parents = {name: each for run in makers for name, each in graph.inputs(run).items()}
        children = dict.fromkeys(output for run in graph.children(digest) for output in graph.children(run))
        boxes = view.of_artifact(graph, digest, query.get("open", "").split(), _limit(query, view.LIMIT))
        shown = {box.artifact for box in boxes if box.artifact}
        with self.engine.connect() as connection:
            tags = facts.tags(connection, [run.id for run in uses])
            own = tags.get(next(iter(makers), ""), {})
            measured = facts.metrics(connection, makers[:1])
            units = facts.units(connection, makers[:1]).get(next(iter(makers), ""), {})
            named = describe(graph, connection, {digest, *parents.values(), *children, *shown, *([to] if to else [])})
            drawing = self._draw(connection, boxes, Marks(digest, way), f"Where {named[digest].name} is from", query)
            execution = graph.executions.get(graph.runs[makers[0]].execution) if makers else None
            told = facts.tags(connection, [execution.run_id])[execution.run_id] if execution else {}
            page = {"findings": findings(graph, connection, digest), "versions": versions_of(connection, digest)}
        at = files.look(next((each["baton.job"] for each in tags.values() if "baton.job" in each), None), digest)
        relatives = [artifact_line(named[each]) for each in shown - {digest}]
        return page | {
            **artifact_line(named[digest]),
            "title": named[digest].name,
            "facts": all_facts(own, measured.get(next(iter(makers), ""), {})),
            "units": facts.UNITS | {name: each.unit for name, each in units.items()},
            "makers": [run_line(graph.runs[run]) for run in makers],
            "uses": [{**run_line(run), "execution": execution_line(graph, run.execution)} for run in uses],
            "parents": [{"as": name, **artifact_line(named[each])} for name, each in parents.items()],
            "children": [artifact_line(named[each]) for each in children],
            "again": again.commands(told, execution.id) if execution else [],
            "command": own.get("baton.command", ""),
            "code": again.code(own),
            "state": at.state,
            "directory": at.directory,
            "host": own.get("baton.machine.host", ""),
            "files": at.files,
            "records": at.records,
            "to": artifact_line(named[to]) if to else None,
            "way": way,
            "relatives": sorted(relatives, key=lambda each: (each["name"], each["digest"])),
            "_graph": drawing,
        }

    def compare(self, query: Query) -> Page:
        """Two models, or any two artifacts, `a` and `b`; without them, the models to choose from."""
        graph = self.graph.refresh()
        sides = {side: graph.resolve(query[side]) for side in ("a", "b") if query.get(side)}
        with self.engine.connect() as connection:
            page: Page = {"title": "Compare", "choices": choices(graph, connection), "a": None, "b": None}
            if len(sides) == 2:
                return page | comparison(graph, connection, sides["a"], sides["b"])
        return page | ({"a": {"digest": next(iter(sides.values()))}} if sides else {})

    def models(self, query: Query) -> Page:
        graph = self.graph.refresh()
        with self.engine.connect() as connection:
            return {"title": "Models", "models": registered(graph, connection)}

    def _execution(self, id: str) -> Execution:
        if id not in self.graph.executions:
            raise UnknownNode(f"{id}: no execution has this id")
        return self.graph.executions[id]

    def _matching(self, connection: Connection, executions: list[Execution], word: str) -> list[Execution]:
        """Those that a word of a search means: `field=value` of the recipe or of a stage's spec, part of a name
        or of an id, or the beginning of a commit."""
        field, equals, value = word.partition("=")
        if equals:
            runs = facts.with_param(connection, field, value)
            ids = runs | {self.graph.runs[run].execution for run in runs if run in self.graph.runs}
            return [each for each in executions if ids & {each.id, each.run_id}]
        is_hex = len(word) >= 4 and set(word) <= set("0123456789abcdef")
        runs = facts.with_tag(connection, "mlflow.source.git.commit", f"{word}%") if is_hex else set()
        said = word.lower()
        return [each for each in executions if each.run_id in runs or said in f"{each.name} {each.id}".lower()]

    def _draw(self, connection: Connection, boxes: list[view.Box], marks: Marks, alt: str, query: Query) -> Any:
        named = describe(self.graph, connection, {box.artifact for box in boxes if box.artifact})

        def link(node: str) -> str:
            if not node.startswith("fold:"):
                return f"{self.mount}/{'runs' if node in self.graph.runs else 'artifacts'}/{quote(node, safe='')}"
            opened = dict.fromkeys([*query.get("open", "").split(), view.folded_at(node)])
            told = {"open": " ".join(opened), "limit": view.MOST, "to": query.get("to", "")}
            return f"?{urlencode({name: value for name, value in told.items() if value})}#graph"

        return draw(boxes, named, self.graph.runs, link, marks, alt)


def _limit(query: Query, default: int) -> int:
    return min(max(1, _int(query.get("limit"), default)), view.MOST)


def _int(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 9 else default
