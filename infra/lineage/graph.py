"""The lineage graph: artifacts, by digest, and the runs that read and made them.

The graph is held in memory and refreshed before each query: one aggregate over MLflow's runs shows whether anything
changed, and only changed runs are read again. 20,000 artifacts load in a second; queries then take milliseconds.
"""

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Engine, and_, case, func, or_, select
from sqlalchemy.engine import Connection

from baton.infra.lineage.ancestry import Ancestry, Run
from baton.infra.lineage.database import AFTER_INPUTS, INPUTS, RUNS, TAGS, among, rows
from baton.infra.lineage.facts import seconds
from baton.infra.lineage.liveness import LIVE, local_status
from baton.infra.tracking.mlflow_records import SHOWN_TAG
from baton.infra.tracking.relations import Relation

KIND, RELATION, RELATED_TO = (f"{SHOWN_TAG}{name}" for name in ("kind", "relation", "related_to"))
MANY = 400  # more changed runs than this are read faster in one pass over the tags
FOLD = "fold:"  # prefix of the names of folded nodes in drawings
NO_ARTIFACT = "no artifact has this digest (at least its first 6 characters)"


class UnknownNode(LookupError):
    """No artifact, run or execution has this name."""


@dataclass(frozen=True)
class Execution:
    """One run of a workflow: the MLflow parent run of its stages."""

    id: str
    run_id: str
    name: str
    status: str
    started: float
    ended: float | None

    @property
    def live(self) -> bool:
        return self.status in LIVE


class Graph:
    """All runs and artifacts of a store."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.runs: dict[str, Run] = {}
        self.ancestry = Ancestry({})
        self.executions: dict[str, Execution] = {}
        self.alive_here: set[str] = set()  # executions with a process on this machine
        self._stages: dict[str, list[str]] = {}  # execution -> runs, oldest first
        self._artifacts: set[str] = set()  # digests
        self._known: dict[str, tuple[object, ...]] = {}
        self._seen: object = None
        self._lock = threading.Lock()

    def refresh(self) -> "Graph":
        """Read the changes in the store; returns itself."""
        with self._lock, self.engine.connect() as connection:
            seen = connection.execute(_FINGERPRINT).one()
            live = {run for run, row in self._known.items() if row[2] in LIVE}
            if seen != self._seen:
                known = {row[0]: tuple(row) for row in connection.execute(_ALL_RUNS)}
                changed = {run for run, row in known.items() if self._known.get(run) != row} | (live & known.keys())
                removed = self._known.keys() - known.keys()
                self._known = known
            else:
                changed, removed = live, set()
            if changed or removed:
                self._read(connection, changed, removed)
            self._seen = seen
        return self

    def _read(self, connection: Connection, changed: set[str], removed: Iterable[str]) -> None:
        tags: dict[str, dict[str, str]] = defaultdict(dict)
        query = select(TAGS.c.run_uuid, TAGS.c.key, TAGS.c.value).where(_WANTED_TAGS)
        if len(changed) > MANY:
            for run, key, value in connection.execute(query):
                tags[run][key] = value
        else:
            for run, key, value in rows(connection, query.where(TAGS.c.run_uuid.in_(among("runs"))), runs=changed):
                tags[run][key] = value
        runs, executions = dict(self.runs), {execution.run_id: execution for execution in self.executions.values()}
        for run in removed:
            runs.pop(run, None)
            executions.pop(run, None)
        for run in changed:
            self._place(run, tags[run], runs, executions)
        by_id = {execution.id: execution for execution in executions.values()}
        if runs != self.runs or by_id != self.executions:
            self.connect(runs, by_id)

    def _place(self, run: str, tags: dict[str, str], runs: dict[str, Run], executions: dict[str, Execution]) -> None:
        """Add one run, as a stage or as an execution; a run that is not Baton's has none of the tags."""
        _, name, status, start, end = self._known[run]
        execution = tags.get("baton.execution")
        if execution is None:
            return
        ended = None if end is None else seconds(end)  # type: ignore[arg-type]
        if status in LIVE and (local := local_status(execution)):
            status, ended = local
            (self.alive_here.add if status in LIVE else self.alive_here.discard)(execution)
        times = (seconds(start), ended)  # type: ignore[arg-type]
        if tags.get("baton.role") == "execution":
            shown = str(name or execution).removesuffix(execution).strip() or execution
            executions[run] = Execution(execution, run, shown, str(status), *times)
        else:
            inputs = {key.removeprefix(INPUTS): tags[key] for key in sorted(tags) if key.startswith(INPUTS)}
            runs[run] = Run(
                run,
                str(name or "stage"),
                str(status),
                *times,
                execution=execution,
                cached=tags.get("baton.cached") == "true",
                output=_digest(tags.get("baton.output")),
                inputs={name: digest for name, tag in inputs.items() if (digest := _digest(tag))},
                kind=tags.get(KIND),
                related=Relation(tags[RELATION], tags.get(RELATED_TO, "")) if RELATION in tags else None,
            )

    def connect(self, runs: dict[str, Run], executions: dict[str, Execution]) -> None:
        """Rebuild the edges."""
        ancestry, stages, artifacts = Ancestry(runs), defaultdict[str, list[str]](list), set[str]()
        for run in ancestry.by_age:
            stages[run.execution].append(run.id)
            artifacts.update(run.inputs.values())
            if run.output:
                artifacts.add(run.output)
        # runs first: a concurrent reader of an old edge then finds its run in the new graph
        self.runs, self.executions, self.ancestry = runs, executions, ancestry
        self._stages, self._artifacts = dict(stages), artifacts

    def is_artifact(self, node: str) -> bool:
        return node in self._artifacts

    def resolve(self, digest: str) -> str:
        """The artifact whose digest starts with `digest` (6 characters or more). Raises UnknownNode."""
        if self.is_artifact(digest):
            return digest
        matches = [known for known in self._artifacts if known.startswith(digest)] if len(digest) >= 6 else []
        if len(matches) != 1:
            raise UnknownNode(
                f"{digest}: {'more than one digest starts with it; give more characters' if matches else NO_ARTIFACT}"
            )
        return matches[0]

    def beginning_with(self, prefix: str) -> set[str]:
        """The artifacts whose digests begin with a prefix."""
        return {known for known in self._artifacts if known.startswith(prefix)}

    def stages(self, execution: str) -> list[Run]:
        """The stages of an execution, oldest first."""
        return [self.runs[run] for run in self._stages.get(execution, ())]

    def maker(self, digest: str) -> Run | None:
        """The run that made an artifact first; None if it is not on record."""
        maker = self.ancestry.maker(digest)
        return self.runs[maker] if maker else None

    def uses(self, digest: str) -> list[Run]:
        """All runs with this output: its maker, and those that recomputed it, took it from the cache, or chose it."""
        return [run for run in self.ancestry.by_age if run.output == digest]

    def readers(self, digest: str) -> list[Run]:
        """The runs that read an artifact and have an output, oldest first; cached ones are left out."""
        return [run for run in self.ancestry.by_age if run.output and not run.cached and digest in run.inputs.values()]

    def inputs(self, run: str) -> dict[str, str]:
        """The inputs of a run; for a cached run recorded without inputs, those of the run that made its output."""
        record = self.runs[run]
        maker = self.maker(record.output) if record.output and record.cached and not record.inputs else None
        return maker.inputs if maker else record.inputs


def _digest(tag: str | None) -> str | None:
    """The digest in a tag; None for an empty tag or the name of a folded node, since any client can write tags."""
    return None if not tag or tag.startswith(FOLD) else tag


_WANTED_TAGS = or_(
    TAGS.c.key.in_(("baton.execution", "baton.output", KIND, RELATION, RELATED_TO)),
    and_(TAGS.c.key >= INPUTS, TAGS.c.key < AFTER_INPUTS),
    and_(TAGS.c.key == "baton.role", TAGS.c.value == "execution"),
    and_(TAGS.c.key == "baton.cached", TAGS.c.value == "true"),
)
_ALIVE = RUNS.c.lifecycle_stage == "active"
PRIME = 2_147_483_647  # a sum of times modulo this cannot overflow
# a run that starts, ends, resumes or is deleted changes one of these
_FINGERPRINT = select(
    func.count(),
    func.sum(RUNS.c.start_time % PRIME),
    func.sum(RUNS.c.end_time % PRIME),
    func.sum(case((RUNS.c.status == "RUNNING", 1))),
).where(_ALIVE)
_ALL_RUNS = select(RUNS.c.run_uuid, RUNS.c.name, RUNS.c.status, RUNS.c.start_time, RUNS.c.end_time).where(_ALIVE)
