"""The content of each page, as data: a template renders it, and the page's JSON twin is the data itself.

Keys that start with "_" are drawings and paths; the JSON twin leaves them out.
"""

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import yaml
from sqlalchemy import Engine
from sqlalchemy.engine import Connection

from baton.infra.drawing.charts import Points, curves
from baton.infra.drawing.graph import Box, Marks, draw
from baton.infra.lineage import code, facts, files, reproduce, subgraph
from baton.infra.lineage.ancestry import Run
from baton.infra.lineage.archive import Archive, archive, has_storage
from baton.infra.lineage.artifacts import describe, described_by
from baton.infra.lineage.compare import choices, comparison
from baton.infra.lineage.dashboard import dashboard, recipes_evaluated
from baton.infra.lineage.executions import Filters, executions_page, words_of
from baton.infra.lineage.graph import FOLD, Execution, Graph, UnknownNode
from baton.infra.lineage.registry import registered, versions_of
from baton.infra.lineage.search import results
from baton.infra.lineage.summaries import (
    SILENT,
    artifact_row,
    execution_link,
    execution_rows,
    findings,
    in_order,
    progress,
    run_row,
    run_silent_s,
    stages_to_come,
    time_left,
)
from baton.infra.tracking.flatten import flatten
from baton.infra.tracking.machine import flyte_page
from baton.infra.tracking.mlflow_records import OUTPUT
from baton.infra.tracking.relations import DESCRIBED, Relation

LIVE_CURVES = ("loss", "validation_loss", "reward", "kl")  # on an execution's page, of the stages that run
MOUNT = "/lineage"
REPORT = "report.html"
STEP_UNITS = {"endpoint": "client"}  # the unit of a step, by the kind of a run's output
TIME_UNITS = ((7200, 3600.0, "hour"), (180, 60.0, "minute"), (0, 1.0, "second"))

Query = Mapping[str, str]
Page = dict[str, Any]


class Pages:
    """The pages of one store, under the address `mount`."""

    def __init__(self, engine: Engine, mount: str) -> None:
        self.engine, self.mount = engine, mount
        self.graph = Graph(engine)

    def executions(self, query: Query) -> Page:
        """The executions that match `q` (every word), `state`, `recipe`, `since` and `until`. Raises QueryRefused."""
        graph, filters = self.graph.refresh(), Filters.of(query)
        with self.engine.connect() as connection:
            page = executions_page(graph, connection, filters, _int(query.get("page"), 1))
        executions = graph.executions.values()
        states = {execution.status for execution in executions}
        return page | {
            "title": "Executions",
            "filters": vars(filters),
            "states": sorted(states.union(row["status"] for row in page["executions"])),
            "recipes": sorted({execution.name for execution in executions}),
            "total": len(executions),
            "users": any(row["user"] for row in page["executions"]),
            "costs": any(row["cost_usd"] is not None for row in page["executions"]),
            "live": any(row["live"] for row in page["executions"]),
        }

    def search(self, query: Query) -> Page:
        """Everything that matches every word of `q`. Raises QueryRefused."""
        q = query.get("q", "").strip()
        words = words_of(q)
        graph = self.graph.refresh()
        with self.engine.connect() as connection:
            found = results(graph, connection, words)
        return {"title": "Search", "q": q} | found

    def opened(self, query: Query) -> str | None:
        """The address of the page that a search opens at once: an artifact by its digest, an execution by its id."""
        q, graph = query.get("q", "").strip(), self.graph.refresh()
        if q in graph.executions:
            return f"{self.mount}/executions/{quote(q, safe='')}"
        try:
            return f"{self.mount}/artifacts/{quote(graph.resolve(q), safe='')}"
        except UnknownNode:
            return None

    def execution(self, id: str, query: Query) -> Page:
        graph = self.graph.refresh()
        execution, stages = self._execution(id), graph.stages(id)
        with self.engine.connect() as connection:
            (row,) = execution_rows(graph, connection, [execution])
            tags = facts.tags(connection, [execution.run_id])[execution.run_id]
            stages = in_order(stages, tags)
            named = describe(graph, connection, {run.output for run in stages if run.output})
            errors = facts.tags(connection, [run.id for run in stages], "baton.error")
            to_come = stages_to_come(graph, execution, stages, tags)
            boxes = subgraph.of_execution(graph, id, query.get("open", "").split(), _limit(query, subgraph.MOST))
            boxes += subgraph.to_come(boxes, [stage["title"] for stage in to_come])
            drawing = self._draw(connection, boxes, Marks(), f"The stages of {execution.name}", query)
            live = [run for run in stages if run.live]
            points = {run.title: facts.curves(connection, run.id, only=LIVE_CURVES) for run in live}
            mlflow = facts.mlflow_runs(connection, id, execution.run_id)
            params = facts.params(connection, [execution.run_id]).get(execution.run_id, {})
        recipe, repository = reproduce.recipe(params), reproduce.repository(tags)
        settings = _ordered(reproduce.recipe(facts.group(tags, "setting")), recipe)
        outputs = {run.id: artifact_row(named[run.output]) if run.output else None for run in stages}
        reports = [run.output for run in stages if run.output and named[run.output].kind == "report"]
        return row | {
            "title": execution.name,
            "code": reproduce.code(tags),
            "repository": {name: value for name, value in repository.items() if name != "diff"},
            "diff": f"{self.mount}/executions/{quote(id)}/{reproduce.DIFF}" if "diff" in repository else None,
            "functions": _functions(reproduce.full_recipe(tags, params)),
            "error": tags.get("baton.error"),
            "command": tags.get("mlflow.source.name", ""),
            "reproduce": reproduce.commands(tags, id),
            "links": {"Flyte": flyte_page(tags.get("baton.flyte", ""))} | facts.group(tags, "link"),
            "mlflow": mlflow,
            "report": self._file(reports[-1], REPORT) if reports else None,
            "recipe": params,
            "settings": settings,
            "yaml": _yaml(settings),
            "stages": [
                run_row(run)
                | {"made": outputs[run.id], "error": errors.get(run.id, {}).get("baton.error")}
                | ({"status": SILENT} if run.live and row["status"] == SILENT else {})
                for run in stages
            ],
            "to_come": to_come,
            "left": time_left(row["progress"], to_come) if row["status"] != SILENT else None,
            "curves": points,
            "_curves": [
                curves(f"{title} {name}", {name: line}) for title, some in points.items() for name, line in some.items()
            ],
            "_graph": drawing,
        }

    def recipe(self, id: str) -> Any:
        """The recipe of an execution with the source of its functions, as `pyflyte run --recipe` accepts it."""
        self.graph.refresh()
        run = self._execution(id).run_id
        with self.engine.connect() as connection:
            tags = facts.tags(connection, [run]).get(run, {})
            return reproduce.full_recipe(tags, facts.params(connection, [run]).get(run, {}))

    def diff(self, id: str) -> str:
        """The uncommitted changes of the user's repository. Raises UnknownNode."""
        self.graph.refresh()
        execution = self._execution(id)
        with self.engine.connect() as connection:
            changes = reproduce.repository(facts.tags(connection, [execution.run_id])[execution.run_id]).get("diff")
        if changes is None:
            raise UnknownNode(f"{execution.name}: no uncommitted changes of a repository are recorded")
        return changes

    def run(self, id: str, query: Query) -> Page:
        """One run. `x=time` draws curves over time, `y=log` on a logarithmic axis."""
        graph, run = self.graph.refresh(), self._run(id)
        inputs = graph.inputs(id)
        with self.engine.connect() as connection:
            tags = facts.tags(connection, [id]).get(id, {})
            measured = facts.metrics(connection, [id]).get(id, {})
            over_time = query.get("x") == "time"
            points = facts.curves(connection, id, since=run.started if over_time else None)
            named = describe(graph, connection, {*inputs.values(), *([run.output] if run.output else [])})
            page = {
                "spec": facts.params(connection, [id]).get(id, {}),
                "mlflow": facts.mlflow_page(connection, id),
            }
            silent = run_silent_s(graph, connection, run)
        unit = STEP_UNITS.get(tags.get("baton.output.kind", ""), "step")
        shown, unit = _over_time(points) if over_time else (points, unit)
        log, log_whole = files.tail(tags.get("baton.job")) or (None, False)
        return page | {
            **run_row(run),
            **({"status": SILENT} if silent else {}),
            "execution": execution_link(graph, run.execution),
            "error": tags.get("baton.error"),
            "inputs": [{"as": name, **artifact_row(named[digest])} for name, digest in inputs.items()],
            "made": artifact_row(named[run.output]) if run.output else None,
            "progress": progress(run, tags) if run.live else None,
            "silent_s": silent,
            "cost_usd": facts.cost(tags, measured, run.took),
            "machine": facts.group(tags, "machine"),
            "placed": facts.group(tags, "placed"),
            "code": reproduce.code(tags),
            "versions": facts.group(tags, "version"),
            "command": tags.get("baton.command", ""),
            "metrics": {name: value for name, value in sorted(measured.items()) if not name.startswith(OUTPUT)},
            "curves": shown,
            "axes": {"x": "time" if over_time else "step", "y": "log" if query.get("y") == "log" else "linear"},
            "step_unit": unit,
            "log": log,
            "log_whole": log_whole,
            "live": run.live,
            "_curves": [curves(name, {name: line}, unit, log=query.get("y") == "log") for name, line in shown.items()],
        }

    def log(self, id: str, query: Query) -> Page:
        """The log of a run: its end, or the lines that contain `find`."""
        graph, run = self.graph.refresh(), self._run(id)
        find = query.get("find", "")[:200]
        log = files.log(self._job(id), find)
        if log is None:
            raise UnknownNode(f"{run.title}: its log is not on this machine")
        return {
            "title": f"Log of {run.title}",
            "run": run_row(run),
            "execution": execution_link(graph, run.execution),
            "find": find,
            "bytes": log.bytes,
            "whole": log.whole,
            "lines": [{"number": number, "text": text} for number, text in log.lines],
            "live": run.live and not find,
        }

    def full_log(self, id: str) -> Any:
        """The text of a run's log in chunks, redacted. Raises UnknownNode."""
        self.graph.refresh()
        run = self._run(id)
        chunks = files.full_log(self._job(id))
        if chunks is None:
            raise UnknownNode(f"{run.title}: its log is not on this machine")
        return chunks

    def file(self, digest: str, name: str) -> Any:
        """The path of one of an artifact's files. Raises UnknownNode."""
        digest = self.graph.refresh().resolve(digest)
        with self.engine.connect() as connection:
            tags = facts.tags(connection, [run.id for run in self.graph.uses(digest)], "baton.job")
        path = files.file_of(next((some["baton.job"] for some in tags.values()), None), digest, name)
        if path is None:
            raise UnknownNode(f"{name}: not a file of artifact {digest[:12]} that is on this machine")
        return path

    def archive(self, digest: str) -> Archive:
        """One artifact's folder as a tar file. Raises UnknownNode, StorageError."""
        digest = self.graph.refresh().resolve(digest)
        with self.engine.connect() as connection:
            tags = facts.tags(connection, [run.id for run in self.graph.uses(digest)], "baton.job")
            name = describe(self.graph, connection, {digest})[digest].name
        packed = archive(name, digest, next((some["baton.job"] for some in tags.values()), None))
        if packed is None:
            raise UnknownNode(f"artifact {digest[:12]}: its files are neither on this machine nor in BATON_STORAGE")
        return packed

    def artifact(self, digest: str, query: Query) -> Page:
        """One artifact. `to` names another: the path between the two is marked."""
        graph = self.graph.refresh()
        digest = graph.resolve(digest)
        to = graph.resolve(query["to"]) if query.get("to") else None
        maker, uses = graph.maker(digest), graph.uses(digest)
        path = graph.ancestry.path(digest, to) if to else []
        parents = graph.inputs(maker.id) if maker else {}
        children = {run.output: run for run in reversed(graph.readers(digest)) if run.output and not run.handed_on}
        boxes = subgraph.of_artifact(graph, digest, query.get("open", "").split(), _limit(query, subgraph.LIMIT))
        shown = {box.artifact for box in boxes if box.artifact}
        with self.engine.connect() as connection:
            tags = facts.tags(connection, [run.id for run in uses])
            known = described_by(graph, digest)
            maker_tags = tags.get(known, {})
            measured = facts.metrics(connection, [known]).get(known, {})
            units = facts.units(connection, [known]).get(known, {})
            named = describe(graph, connection, {digest, *parents.values(), *children, *shown, *([to] if to else [])})
            drawing = self._draw(connection, boxes, Marks(digest, path), f"Lineage of {named[digest].name}", query)
            execution = graph.executions.get(maker.execution) if maker else None
            execution_tags = facts.tags(connection, [execution.run_id])[execution.run_id] if execution else {}
            page = {"findings": findings(graph, connection, digest), "versions": versions_of(connection, digest)}
        output = files.look(next((some["baton.job"] for some in tags.values() if "baton.job" in some), None), digest)
        relatives = [artifact_row(named[artifact]) for artifact in shown - {digest}]
        related = maker.relation if maker else Relation()
        return page | {
            **artifact_row(named[digest]),
            "title": named[digest].name,
            "facts": facts.group(maker_tags, "fact") | facts.of_output(measured),
            "units": facts.UNITS | {name: unit.unit for name, unit in units.items()},
            "makers": [run_row(maker)] if maker else [],
            "uses": [
                {**run_row(run), "how": _how(run, maker), "execution": execution_link(graph, run.execution)}
                for run in uses
            ],
            "parents": [
                {"as": name, "relation": related.to(digest, name, parents)} | artifact_row(named[parent])
                for name, parent in parents.items()
            ],
            "children": [
                {"relation": _relation_to(run, digest), **artifact_row(named[child])}
                for child, run in reversed(children.items())
            ],
            "reproduce": reproduce.commands(execution_tags, execution.id) if execution else [],
            "command": maker_tags.get("baton.command", ""),
            "code": reproduce.code(maker_tags),
            "state": output.state,
            "directory": output.directory,
            "host": maker_tags.get("baton.machine.host", ""),
            "files": [file | {"url": self._file(digest, file["name"])} for file in output.files],
            "folder": self._folder(digest) if output.state == "here" or has_storage() else None,
            "records": output.records,
            "to": artifact_row(named[to]) if to else None,
            "path": path,
            "relatives": sorted(relatives, key=lambda row: (row["name"], row["digest"])),
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

    def metrics(self, query: Query) -> Page:
        """The evaluations of one `recipe` over time; by default of the one that was evaluated last."""
        graph = self.graph.refresh()
        with self.engine.connect() as connection:
            recipes = recipes_evaluated(graph, connection)
            recipe = query.get("recipe") or next(iter(recipes), "")
            return {"title": "Metrics", "recipe": recipe, "recipes": recipes} | dashboard(graph, connection, recipe)

    def _execution(self, id: str) -> Execution:
        if id not in self.graph.executions:
            raise UnknownNode(f"{id}: no execution has this id")
        return self.graph.executions[id]

    def _run(self, id: str) -> Run:
        if id not in self.graph.runs:
            raise UnknownNode(f"{id}: no run has this id")
        return self.graph.runs[id]

    def _job(self, run: str) -> str | None:
        with self.engine.connect() as connection:
            return facts.tags(connection, [run], "baton.job").get(run, {}).get("baton.job")

    def _file(self, digest: str, name: str) -> str:
        return f"{self.mount}/artifacts/{quote(digest, safe='')}/files/{quote(name)}"

    def _folder(self, digest: str) -> str:
        return f"{self.mount}/artifacts/{quote(digest, safe='')}/folder.tar"

    def _draw(self, connection: Connection, boxes: list[Box], marks: Marks, alt: str, query: Query) -> Any:
        named = describe(self.graph, connection, {box.artifact for box in boxes if box.artifact})

        def link(node: str) -> str:
            if not node.startswith(FOLD):
                return f"{self.mount}/{'runs' if node in self.graph.runs else 'artifacts'}/{quote(node, safe='')}"
            opened = dict.fromkeys([*query.get("open", "").split(), subgraph.folded_at(node)])
            fields = {"open": " ".join(opened), "limit": subgraph.MOST, "to": query.get("to", "")}
            return f"?{urlencode({name: value for name, value in fields.items() if value})}#graph"

        return draw(boxes, named, self.graph.runs, link, marks, alt)


def as_json(content: Any) -> Any:
    """The content of a page as JSON has it, without drawings."""
    if isinstance(content, dict):
        return {name: as_json(item) for name, item in content.items() if not name.startswith("_")}
    if isinstance(content, float) and not math.isfinite(content):
        return None  # JSON has no NaN
    return [as_json(item) for item in content] if isinstance(content, list) else content


def _functions(recipe: Any) -> dict[str, str]:
    """The source of the user's functions in a recipe, by file."""
    return code.split(flatten(recipe))[1] if isinstance(recipe, dict) else {}


def _how(run: Run, maker: Run | None) -> str:
    """Describe the way in which a run obtained its output artifact."""
    if run.cached:
        return "took it from the cache"
    return "made it" if run is maker else "chose it" if run.handed_on else "recomputed it"


def _relation_to(run: Run, digest: str) -> str:
    """The relation of a run's output to an artifact that it read; if there are several, the closest."""
    kinds = {run.relation.to(run.output, name, run.inputs) for name, read in run.inputs.items() if read == digest}
    return min(kinds, key=lambda each: each == DESCRIBED)


def _yaml(recipe: Any) -> str:
    return yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=100) if recipe else ""


def _ordered(settings: Any, recipe: Any) -> Any:
    """Sort the settings as in the recipe: tags have no order."""
    if not (isinstance(settings, dict) and isinstance(recipe, dict)):
        return settings
    names = [*(name for name in recipe if name in settings), *(name for name in settings if name not in recipe)]
    return {name: _ordered(settings[name], recipe.get(name)) for name in names}


def _over_time(points: dict[str, Points]) -> tuple[dict[str, Points], str]:
    """Points over seconds in the unit that suits the longest curve."""
    longest = max((line[-1][0] for line in points.values()), default=0.0)
    _, scale, unit = next(row for row in TIME_UNITS if longest >= row[0])
    return {name: [(seconds / scale, value) for seconds, value in line] for name, line in points.items()}, unit


def _limit(query: Query, default: int) -> int:
    return min(max(1, _int(query.get("limit"), default)), subgraph.MOST)


def _int(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 9 else default
