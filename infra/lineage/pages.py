"""What each page shows, as data: the template renders it, and its JSON twin is it.

Keys that begin with "_" are drawings; the JSON twin leaves them out.
"""

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine import Connection

from infra.charts import Points, curves
from infra.lineage import artifacts, facts, files, view
from infra.lineage.artifacts import FACT, describe
from infra.lineage.diff import difference
from infra.lineage.draw import Marks, draw
from infra.lineage.graph import Execution, Graph, Run, UnknownNode

A_PAGE = 50  # executions
MODELS_TO_COMPARE = 200  # the newest, in the list to choose from
SILENT_S = 120.0  # without a sign of life a running stage is said to be silent

Query = Mapping[str, str]
Page = dict[str, Any]


class Pages:
    """The pages of one store. `link(kind, id)` is the address of a page."""

    def __init__(self, engine: Engine, mount: str) -> None:
        self.engine, self.mount = engine, mount
        self.graph = Graph(engine)

    def link(self, node: str) -> str:
        kind = "runs" if node in self.graph.runs else "artifacts"
        return f"{self.mount}/{kind}/{node}"

    # pages

    def executions(self, query: Query) -> Page:
        """All executions, newest first; `q` has words that must all match, `state` is a status."""
        graph, words, state = self.graph.refresh(), query.get("q", "").split(), query.get("state", "")
        found = sorted(graph.executions.values(), key=lambda each: (-each.started, each.id))
        states = sorted({each.status for each in found})
        with self.engine.connect() as connection:
            for word in words:
                found = self._matching(connection, found, word)
            found = [each for each in found if state in ("", each.status)]
            page = min(max(1, _int(query.get("page"), 1)), -(-len(found) // A_PAGE) or 1)
            shown = found[(page - 1) * A_PAGE : page * A_PAGE]
            rows = self._rows(connection, shown)
        return {
            "title": "Executions",
            "q": query.get("q", ""),
            "state": state,
            "states": states,
            "total": len(graph.executions),
            "matching": len(found),
            "page": page,
            "pages": -(-len(found) // A_PAGE) or 1,
            "executions": rows,
            "live": any(each.live for each in shown),
        }

    def execution(self, id: str, query: Query) -> Page:
        graph = self.graph.refresh()
        if id not in graph.executions:
            raise UnknownNode(f"{id}: no execution has this id")
        execution, stages = graph.executions[id], graph.stages(id)
        with self.engine.connect() as connection:
            (row,) = self._rows(connection, [execution])
            tags = facts.tags(connection, [execution.run_id])[execution.run_id]
            params = facts.params(connection, [execution.run_id]).get(execution.run_id, {})
            named = describe(graph, connection, {run.output for run in stages if run.output})
            errors = facts.tags(connection, [run.id for run in stages], "baton.error")
            boxes = view.of_execution(graph, id, query.get("open", "").split(), _limit(query, view.MOST))
            drawing = self._draw(connection, boxes, Marks(), f"The stages of {execution.name}", query)
            experiment = facts.experiment(connection, execution.run_id)
        return {
            **row,
            "title": execution.name,
            "code": _code(tags),
            "command": tags.get("mlflow.source.name", ""),
            "again": _again(tags, id),
            "links": facts.group(tags, "link"),
            "mlflow": f"/#/experiments/{experiment}/runs/{execution.run_id}",
            "recipe": params,
            "stages": [
                self._run(run)
                | {
                    "made": _artifact(named[run.output]) if run.output else None,
                    "error": errors.get(run.id, {}).get("baton.error"),
                }
                for run in stages
            ],
            "_graph": drawing,
        }

    def recipe(self, id: str) -> Any:
        """The recipe of an execution, as `pyflyte run --recipe` takes it."""
        graph = self.graph.refresh()
        if id not in graph.executions:
            raise UnknownNode(f"{id}: no execution has this id")
        run = graph.executions[id].run_id
        with self.engine.connect() as connection:
            return _nested(facts.params(connection, [run]).get(run, {}))

    def run(self, id: str, query: Query) -> Page:
        graph = self.graph.refresh()
        if id not in graph.runs:
            raise UnknownNode(f"{id}: no run has this id")
        run = graph.runs[id]
        with self.engine.connect() as connection:
            tags = facts.tags(connection, [id]).get(id, {})
            measured = facts.metrics(connection, [id]).get(id, {})
            points = facts.curves(connection, id)
            inputs = graph.inputs(id)
            named = describe(graph, connection, {*inputs.values(), *([run.output] if run.output else [])})
            progress = _progress(run, tags, facts.last_signs(connection, [id]).get(id))
            spec = facts.params(connection, [id]).get(id, {})
            experiment = facts.experiment(connection, id)
        placement = facts.group(tags, "placed")
        return {
            **self._run(run),
            "execution": self._execution(run.execution),
            "error": tags.get("baton.error"),
            "inputs": [{"as": name, **_artifact(named[digest])} for name, digest in inputs.items()],
            "made": _artifact(named[run.output]) if run.output else None,
            "progress": progress,
            "cost_usd": facts.cost(placement, measured, run.ended and run.ended - run.started),
            "machine": facts.group(tags, "machine"),
            "placement": placement,
            "code": _code(tags),
            "versions": facts.group(tags, "version"),
            "command": tags.get("baton.command", ""),
            "spec": spec,
            "metrics": {name: value for name, value in sorted(measured.items()) if not name.startswith(FACT)},
            "curves": points,
            "log": files.log(tags.get("baton.job")),
            "mlflow": f"/#/experiments/{experiment}/runs/{id}",
            "live": run.live,
            "_curves": [curves(name, {name: each}).svg for name, each in points.items()],
        }

    def artifact(self, digest: str, query: Query) -> Page:
        graph = self.graph.refresh()
        digest = graph.resolve(digest)
        to = graph.resolve(query["to"]) if query.get("to") else None
        makers, uses = graph.parents(digest), graph.uses(digest)
        with self.engine.connect() as connection:
            tags = facts.tags(connection, [run.id for run in uses])
            measured = facts.metrics(connection, makers)
            own = tags.get(next(iter(makers), ""), {})
            job = next((each["baton.job"] for each in tags.values() if each.get("baton.job")), None)
            boxes = view.of_artifact(graph, digest, query.get("open", "").split(), _limit(query, view.LIMIT))
            way = graph.path(digest, to) if to else []
            parents = {name: each for run in makers for name, each in graph.inputs(run).items()}
            children = [output for run in graph.children(digest) for output in graph.children(run)]
            shown = {box.artifact for box in boxes if box.artifact}
            named = describe(graph, connection, {digest, *parents.values(), *children, *shown, *([to] if to else [])})
            about = self._findings(connection, digest, children)
            versions = [
                each
                for each in facts.versions(connection)
                if digest in (each["tags"].get("baton.digest"), each["tags"].get("baton.model"))
            ]
            drawing = self._draw(connection, boxes, Marks(digest, way), f"Where {named[digest].name} is from", query)
            maker = graph.runs[makers[0]] if makers else None
            execution = graph.executions.get(maker.execution) if maker else None
            told = facts.tags(connection, [execution.run_id])[execution.run_id] if execution else {}
        at = files.look(job, digest)
        return {
            **_artifact(named[digest]),
            "title": named[digest].name,
            "facts": artifacts.all_facts(own, measured.get(makers[0], {}) if makers else {}),
            "makers": [self._run(graph.runs[run]) for run in makers],
            "uses": [{**self._run(run), "execution": self._execution(run.execution)} for run in uses],
            "parents": [{"as": name, **_artifact(named[each])} for name, each in parents.items()],
            "children": [_artifact(named[each]) for each in dict.fromkeys(children)],
            "findings": about,
            "versions": versions,
            "again": _again(told, execution.id) if execution else [],
            "command": own.get("baton.command", ""),
            "code": _code(own),
            "state": at.state,
            "directory": at.directory,
            "host": own.get("baton.machine.host", ""),
            "files": at.files,
            "records": at.records,
            "to": _artifact(named[to]) if to else None,
            "way": way,
            "relatives": sorted(
                (_artifact(named[each]) for each in shown - {digest}), key=lambda each: (each["name"], each["digest"])
            ),
            "_graph": drawing,
        }

    def compare(self, query: Query) -> Page:
        """Two models, or any two artifacts, `a` and `b`; without them, the models to choose from."""
        graph = self.graph.refresh()
        sides = [graph.resolve(query[side]) for side in ("a", "b") if query.get(side)]
        with self.engine.connect() as connection:
            choices = self._models(connection)
            page: Page = {"title": "Compare", "choices": choices, "a": None, "b": None}
            if len(sides) < 2:
                return page | {"a": {"digest": sides[0]} if sides else None}
            named = describe(graph, connection, sides)
            a, b = (_artifact(named[side]) for side in sides)
            found = difference(graph, connection, *sides)
            scores = [self._scores(connection, side) for side in sides]
            lines = [self._curves(connection, one, other) for one, other in (sides, sides[::-1])]
            titles = [_told_apart(each, other) for each, other in ((a, b), (b, a))]
        names = [name for name in lines[0] if name in lines[1]]
        return page | {
            "title": f"{titles[0]} and {titles[1]}",
            "a": a | {"title": titles[0]},
            "b": b | {"title": titles[1]},
            "difference": asdict(found),
            "only": [pair for pair in asdict(found)["artifacts"] if None in (pair["a"], pair["b"])],
            "same": found.none,
            "metrics": [
                {"name": name, "a": scores[0].get(name), "b": scores[1].get(name)}
                for name in dict.fromkeys([*scores[0], *scores[1]])
            ],
            "curves": {name: {"a": lines[0][name], "b": lines[1][name]} for name in names},
            "_curves": [
                curves(name, dict(zip(titles, (lines[0][name], lines[1][name]), strict=True))).svg for name in names
            ],
        }

    def models(self, query: Query) -> Page:
        """The registry's versions, with their aliases and scores, and what each was trained from."""
        graph = self.graph.refresh()
        with self.engine.connect() as connection:
            found = facts.versions(connection)
            digests = {each["tags"].get("baton.model") for each in found}
            known = {digest for digest in digests if digest and digest in graph}
            origins = {digest: self._origins(digest) for digest in known}
            named = describe(graph, connection, known | {each for some in origins.values() for each in some})
        by_name: dict[str, list[dict[str, Any]]] = {}
        for each in found:
            digest = each["tags"].get("baton.model")
            scores = {
                name.removeprefix("baton.eval."): float(value)
                for name, value in each["tags"].items()
                if name.startswith("baton.eval.") and _is_number(value)
            }
            model = _artifact(named[digest]) if digest in named else None
            trained_from = [_artifact(named[origin]) for origin in origins.get(digest, ())]
            told = {key: each[key] for key in ("version", "when", "description", "aliases")}
            by_name.setdefault(each["name"], []).append(told | {"model": model, "scores": scores, "from": trained_from})
        return {
            "title": "Models",
            "models": [
                {"name": name, "versions": versions, "_curves": _over_versions(versions)}
                for name, versions in by_name.items()
            ],
        }

    # parts of pages

    def _rows(self, connection: Connection, executions: list[Execution]) -> list[dict[str, Any]]:
        """One line an execution: its state, what it cost, how good its models are, how far it is."""
        graph = self.graph
        stages = {each.id: graph.stages(each.id) for each in executions}
        runs = [run.id for some in stages.values() for run in some]
        keys = [name for measure, _ in facts.MEASURES for name in (measure, FACT + measure)]
        measured = facts.metrics(connection, runs, *keys, "cost_usd")
        prices = facts.tags(connection, runs, "baton.placed.price_per_hour")
        live = [run.id for each in executions if each.live for run in stages[each.id] if run.live]
        told, signs = facts.tags(connection, live, "baton.progress"), facts.last_signs(connection, live)
        rows = []
        for each in executions:
            bests = [found for run in stages[each.id] if (found := facts.best(measured.get(run.id, {})))]
            costs = [
                facts.cost(facts.group(prices.get(run.id, {}), "placed"), measured.get(run.id, {}), run.took)
                for run in stages[each.id]
            ]
            known = [cost for cost in costs if cost is not None]
            now = [_progress(run, told.get(run.id, {}), signs.get(run.id)) for run in stages[each.id]]
            rows.append(
                {
                    "id": each.id,
                    "name": each.name,
                    "status": each.status,
                    "started": each.started,
                    "ended": each.ended,
                    "duration_s": (each.ended or time.time()) - each.started,
                    "stages_ended": sum(not run.live for run in stages[each.id]),
                    "stages_cached": sum(run.cached for run in stages[each.id]),
                    "cost_usd": sum(known) if known else None,
                    "best": _best_of(bests),
                    "progress": [one for one in now if one],
                    "live": each.live,
                }
            )
        return rows

    def _matching(self, connection: Connection, executions: list[Execution], word: str) -> list[Execution]:
        """Those that a word of a search means: `field=value` of the recipe or of a stage's spec, part of a name
        or of an id, or the beginning of a commit."""
        field, equals, value = word.partition("=")
        if equals:
            runs = facts.with_param(connection, field, value)
            runs |= {self.graph.runs[run].execution for run in runs if run in self.graph.runs}
        else:
            runs = facts.with_tag(connection, "mlflow.source.git.commit", f"{word}%") if _is_hex(word) else set()
        lower = word.lower()
        return [
            each
            for each in executions
            if runs & {each.id, each.run_id} or (not equals and lower in f"{each.name} {each.id}".lower())
        ]

    def _run(self, run: Run) -> dict[str, Any]:
        return {
            "id": run.id,
            "title": run.title,
            "status": run.status,
            "cached": run.cached,
            "started": run.started,
            "ended": run.ended,
            "duration_s": run.took,
            "output": run.output,
        }

    def _execution(self, id: str) -> dict[str, Any] | None:
        found = self.graph.executions.get(id)
        if found is None:
            return None
        return {"id": id, "name": found.name, "status": found.status, "started": found.started}

    def _draw(self, connection: Connection, boxes: list[view.Box], marks: Marks, alt: str, query: Query) -> Any:
        named = describe(self.graph, connection, {box.artifact for box in boxes if box.artifact})
        opened = query.get("open", "").split()

        def link(node: str) -> str:
            if not node.startswith("fold:"):
                return self.link(node)
            _, _, at, *_ = [*node.split(":"), ""]
            wider = f"&limit={view.MOST}" if node.endswith(":relatives") or len(boxes) > view.LIMIT else ""
            way = f"&to={query['to']}" if query.get("to") else ""
            return f"?open={'+'.join(dict.fromkeys([*opened, at]))}{wider}{way}#graph"

        return draw(boxes, named, self.graph.runs, link, marks, alt)

    def _findings(self, connection: Connection, digest: str, children: list[str]) -> list[dict[str, Any]]:
        """Evaluations and audits of an artifact."""
        graph = self.graph
        makers = {child: graph.parents(child)[0] for child in children}
        told = facts.tags(connection, makers.values())
        measured = facts.metrics(connection, makers.values())
        found = []
        for child, run in makers.items():
            kind, about = told[run].get("baton.output.kind"), told[run].get("baton.fact.model_digest", digest)
            if kind in ("eval_report", "conversion_audit") and about == digest:
                values = {name.removeprefix(FACT): v for name, v in measured[run].items() if name.startswith(FACT)}
                found.append({"digest": child, "title": graph.runs[run].title, "kind": kind, "facts": values})
        return found

    def _scores(self, connection: Connection, digest: str) -> dict[str, float]:
        children = [output for run in self.graph.children(digest) for output in self.graph.children(run)]
        found: dict[str, float] = {}
        for finding in self._findings(connection, digest, children):
            if finding["kind"] == "eval_report":
                found |= finding["facts"]
        return found

    def _curves(self, connection: Connection, digest: str, other: str) -> dict[str, Points]:
        """The curves of the stages that it comes from and the other does not, each by stage and metric."""
        graph, found = self.graph, dict[str, Points]()
        shared = set(graph.ancestors(other))
        for node in graph.in_order(graph.ancestors(digest)):
            if node in graph.runs and node not in shared:
                for name, points in facts.curves(connection, node).items():
                    found[f"{graph.runs[node].title} {name}"] = points
        return found

    def _models(self, connection: Connection) -> list[dict[str, Any]]:
        """The newest models, to choose from."""
        graph = self.graph
        known = facts.with_tag(connection, "baton.output.kind", "hf_model")
        made = sorted((graph.runs[run] for run in known if run in graph.runs), key=lambda run: -run.started)
        digests: dict[str, Run] = {}
        for run in made:
            if run.output:
                digests[run.output] = run  # the oldest that made it, at last
        newest = list(digests)[:MODELS_TO_COMPARE]
        named = describe(graph, connection, newest)
        return [
            _artifact(named[each])
            | {"execution": self._execution(digests[each].execution), "when": digests[each].started}
            for each in newest
        ]

    def _origins(self, digest: str) -> list[str]:
        """What a model's history begins with: corpora, models from elsewhere."""
        graph = self.graph
        return [
            node for node in graph.ancestors(digest) if node not in graph.runs and not _made_of_something(graph, node)
        ]


def _made_of_something(graph: Graph, digest: str) -> bool:
    return any(graph.inputs(run) for run in graph.parents(digest))


def _artifact(found: artifacts.Artifact) -> dict[str, Any]:
    return asdict(found)


def _told_apart(each: dict[str, Any], other: dict[str, Any]) -> str:
    return str(each["name"]) if each["name"] != other["name"] else f"{each['name']} {each['digest'][:6]}"


def _best_of(bests: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The best value of the measure that tells most."""
    for name, more in facts.MEASURES:
        same = [best for best in bests if best["name"] == name]
        if same:
            return (max if more else min)(same, key=lambda best: best["value"])
    return None


def _progress(run: Run, tags: dict[str, str], last_sign: float | None) -> dict[str, Any] | None:
    """How far a running stage is, and how long it may still take."""
    if not run.live:
        return None
    try:
        told = json.loads(tags.get("baton.progress", ""))
        done, total, unit, shown = float(told["done"]), float(told["total"]), str(told["unit"]), dict(told["shown"])
        before, since = map(float, told.get("first", (done, 0)))
    except (ValueError, TypeError, KeyError):
        done, total, unit, shown, before, since = 0.0, 0.0, "", {}, 0.0, 0.0
    now = time.time()
    left = (total - done) * (now - since) / (done - before) if before < done <= total else None
    silent = now - (last_sign or run.started)
    return {
        "run": run.id,
        "stage": run.title,
        "done": done,
        "total": total,
        "unit": unit,
        "shown": shown,
        "left_s": left,
        "silent_s": silent if silent > SILENT_S else None,
    }


def _code(tags: dict[str, str]) -> dict[str, str]:
    names = {"commit": "mlflow.source.git.commit", "dirty": "baton.code.dirty", "diff": "baton.code.diff"}
    return {name: tags[key] for name, key in names.items() if tags.get(key)}


def _again(tags: dict[str, str], execution: str) -> list[str]:
    """What a person types to have an execution again, with its recipe as recipe.json."""
    code = _code(tags)
    words = _words(tags.get("mlflow.source.name", ""))
    if not words:
        return []
    words[0] = Path(words[0]).name
    for number, word in enumerate(words[:-1]):
        if word == "--recipe":
            words[number + 1] = "recipe.json"
    lines = [f"git checkout {code['commit']}"] if code.get("commit", "unknown") not in ("unknown", "none") else []
    if code.get("diff"):
        lines.append(f"# and the changes that were not committed then; their digest is {code['diff'][:12]}")
    if "recipe.json" in words:
        lines.append(f"curl -fsS -o recipe.json {{base}}/executions/{execution}/recipe.json")
    return [*lines, shlex.join(words)]


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quote is open: written before commands were quoted
        return command.split()


def _nested(params: dict[str, str]) -> dict[str, Any]:
    """MLflow's flat parameters as the recipe they were; what is no JSON is text."""
    found: dict[str, Any] = {}
    for key, value in params.items():
        *parents, last = key.split(".")
        at = found
        for parent in parents:
            at = at.setdefault(parent, {})
        try:
            at[last] = json.loads(value)
        except ValueError:
            at[last] = value
    return found


def _over_versions(versions: list[dict[str, Any]]) -> list[Any]:
    """The measures that tell most, from version to version."""
    drawn = []
    for name, _ in facts.MEASURES:
        points = sorted((float(each["version"]), each["scores"][name]) for each in versions if name in each["scores"])
        if len(points) > 1:
            drawn.append(curves(name.replace("_", " "), {name: points}, unit="version").svg)
    return drawn


def _limit(query: Query, default: int) -> int:
    return min(max(1, _int(query.get("limit"), default)), view.MOST)


def _int(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 9 else default


def _is_hex(text: str) -> bool:
    return len(text) >= 4 and all(letter in "0123456789abcdef" for letter in text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
