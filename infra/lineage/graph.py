"""The lineage graph: artifacts, by digest, and the runs that read and made them.

The graph is held in memory and refreshed before each query: one aggregate over MLflow's runs shows whether anything
changed, and only changed runs are read again. 20,000 artifacts load in a second; queries then take milliseconds.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sqlalchemy import Engine, and_, case, func, or_, select
from sqlalchemy.engine import Connection

from infra.lineage.database import AFTER_INPUTS, INPUTS, RUNS, TAGS, among, rows
from infra.lineage.liveness import LIVE, local_status

MANY = 400  # more changed runs than this are read faster in one pass over the tags
NO_ARTIFACT = "no artifact has this digest (at least its first 6 characters)"


class UnknownNode(LookupError):
    """No artifact, run or execution has this name."""


@dataclass(frozen=True)
class Run:
    """One stage of an execution."""

    id: str
    title: str
    status: str
    started: float  # seconds since the epoch
    ended: float | None
    execution: str = ""
    cached: bool = False
    output: str | None = None  # digest
    inputs: dict[str, str] = field(default_factory=dict)  # name -> digest

    @property
    def live(self) -> bool:
        return self.status in LIVE

    @property
    def took(self) -> float | None:
        """Seconds; None until it has ended."""
        return None if self.ended is None else self.ended - self.started


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
        self.executions: dict[str, Execution] = {}
        self.alive_here: set[str] = set()  # executions with a process on this machine
        self._stages: dict[str, list[str]] = {}  # execution -> runs, oldest first
        self._makers: dict[str, list[str]] = {}  # digest -> runs that made it, one for each set of inputs
        self._readers: dict[str, list[str]] = {}  # digest -> runs that read it and made another artifact
        self._known: dict[str, tuple[object, ...]] = {}
        self._seen: object = None
        self._lock = threading.Lock()

    def refresh(self) -> "Graph":
        """Read what changed in the store; returns itself."""
        with self._lock, self.engine.connect() as connection:
            seen = connection.execute(_FINGERPRINT).one()
            live = {run for run, row in self._known.items() if row[2] in LIVE}
            if seen != self._seen:
                found = {row[0]: tuple(row) for row in connection.execute(_ALL_RUNS)}
                changed = {run for run, row in found.items() if self._known.get(run) != row} | (live & found.keys())
                gone = self._known.keys() - found.keys()
                self._known = found
            else:
                changed, gone = live, set()
            if changed or gone:
                self._read(connection, changed, gone)
            self._seen = seen
        return self

    def _read(self, connection: Connection, changed: set[str], gone: Iterable[str]) -> None:
        tags: dict[str, dict[str, str]] = defaultdict(dict)
        query = select(TAGS.c.run_uuid, TAGS.c.key, TAGS.c.value).where(_WANTED_TAGS)
        if len(changed) > MANY:
            for run, key, value in connection.execute(query):
                tags[run][key] = value
        else:
            for run, key, value in rows(connection, query.where(TAGS.c.run_uuid.in_(among("runs"))), runs=changed):
                tags[run][key] = value
        runs, executions = dict(self.runs), {execution.run_id: execution for execution in self.executions.values()}
        for run in gone:
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
        ended = None if end is None else float(end) / 1000  # type: ignore[arg-type]
        if status in LIVE and (local := local_status(execution)):
            status, ended = local
            (self.alive_here.add if status in LIVE else self.alive_here.discard)(execution)
        times = (float(start or 0) / 1000, ended)  # type: ignore[arg-type]
        if tags.get("baton.role") == "execution":
            shown = str(name or execution).removesuffix(execution).strip() or execution
            executions[run] = Execution(execution, run, shown, str(status), *times)
        else:
            inputs = {key.removeprefix(INPUTS): value for key, value in sorted(tags.items()) if key.startswith(INPUTS)}
            cached, output = tags.get("baton.cached") == "true", tags.get("baton.output")
            runs[run] = Run(run, str(name or "stage"), str(status), *times, execution, cached, output, inputs)

    def connect(self, runs: dict[str, Run], executions: dict[str, Execution]) -> None:
        """Rebuild the edges. A run that made an artifact again from the same inputs, or got it from the cache, is not
        another maker: the first run stands for all."""
        makers: dict[str, dict[tuple[str, ...], str]] = defaultdict(dict)
        readers: dict[str, list[str]] = defaultdict(list)
        stages: dict[str, list[str]] = defaultdict(list)
        in_order = sorted(runs.values(), key=lambda run: (run.started, run.id))
        for run in in_order:
            stages[run.execution].append(run.id)
        for run in sorted(in_order, key=lambda run: run.cached):
            if run.output and not (run.cached and not run.inputs and makers[run.output]):
                inputs = tuple(sorted(run.inputs.values()))
                if inputs not in makers[run.output]:
                    makers[run.output][inputs] = run.id
                    for digest in dict.fromkeys(inputs):
                        readers[digest].append(run.id)
        # runs first: a concurrent reader of an old edge then finds its run in the new graph
        self.runs, self.executions, self._stages, self._readers = runs, executions, dict(stages), dict(readers)
        self._makers = {digest: list(by_inputs.values()) for digest, by_inputs in makers.items()}

    def is_artifact(self, node: str) -> bool:
        return node in self._makers or node in self._readers

    def __contains__(self, node: str) -> bool:
        return node in self.runs or self.is_artifact(node)

    def resolve(self, digest: str) -> str:
        """The artifact whose digest starts with `digest` (6 characters or more). Raises UnknownNode."""
        if self.is_artifact(digest):
            return digest
        digests = self._makers.keys() | self._readers.keys()
        found = [known for known in digests if known.startswith(digest)] if len(digest) >= 6 else []
        if len(found) != 1:
            raise UnknownNode(
                f"{digest}: {'several artifacts have digests that start so; give more of it' if found else NO_ARTIFACT}"
            )
        return found[0]

    def stages(self, execution: str) -> list[Run]:
        """The stages of an execution, oldest first."""
        return [self.runs[run] for run in self._stages.get(execution, ())]

    def parents(self, node: str) -> list[str]:
        """The runs that made an artifact; the artifacts that a run read."""
        if node in self.runs:
            return list(dict.fromkeys(self.inputs(node).values()))
        return self._makers.get(node, [])

    def children(self, node: str) -> list[str]:
        """The runs that read an artifact and made another; the artifact that a run made."""
        if node in self.runs:
            output = self.runs[node].output
            return [output] if output else []
        return self._readers.get(node, [])

    def inputs(self, run: str) -> dict[str, str]:
        """The inputs of a run; of a cached run recorded without inputs, those of the run that made its output."""
        found = self.runs[run]
        if found.inputs or not found.cached or not found.output:
            return found.inputs
        return next((self.runs[maker].inputs for maker in self._makers.get(found.output, ())), {})

    def uses(self, digest: str) -> list[Run]:
        """All runs with this output, cached ones included, oldest first."""
        found = [run for run in self.runs.values() if run.output == digest]
        return sorted(found, key=lambda run: (run.started, run.id))

    def ancestors(self, node: str) -> list[str]:
        """Upstream artifacts and runs, nearest first."""
        return self._reach(node, self.parents)

    def descendants(self, node: str) -> list[str]:
        """Downstream artifacts and runs, nearest first."""
        return self._reach(node, self.children)

    def path(self, a: str, b: str) -> list[str]:
        """Every node on a path from `a` to `b`, or from `b` to `a`, parents first; empty when neither is upstream of
        the other."""
        for start, end in ((a, b), (b, a)):
            upstream = {end, *self.ancestors(end)}
            if start in upstream:
                return self.in_order(node for node in [start, *self.descendants(start)] if node in upstream)
        return []

    def in_order(self, nodes: Iterable[str]) -> list[str]:
        """Topological order, parents first; a cycle (equal contents can close one) is cut somewhere."""
        wanted, placed, open_ = dict.fromkeys(nodes), dict[str, None](), set[str]()
        for first in wanted:
            waiting = [(first, False)]
            while waiting:
                node, done = waiting.pop()
                if done:
                    placed[node] = None
                elif node not in open_:
                    open_.add(node)
                    waiting.append((node, True))
                    waiting += [(parent, False) for parent in self.parents(node) if parent in wanted]
        return list(placed)

    def _reach(self, node: str, step: Callable[[str], list[str]]) -> list[str]:
        """The nodes that can be reached, nearest first. Raises UnknownNode."""
        if node not in self:
            raise UnknownNode(f"{node}: no artifact and no run has this name")
        found, waiting = {node: None}, deque([node])
        while waiting:
            for other in step(waiting.popleft()):
                if other not in found:
                    found[other] = None
                    waiting.append(other)
        del found[node]
        return list(found)


_WANTED_TAGS = or_(
    TAGS.c.key.in_(("baton.execution", "baton.output")),
    and_(TAGS.c.key >= INPUTS, TAGS.c.key < AFTER_INPUTS),
    and_(TAGS.c.key == "baton.role", TAGS.c.value == "execution"),
    and_(TAGS.c.key == "baton.cached", TAGS.c.value == "true"),
)
_ALIVE = RUNS.c.lifecycle_stage == "active"
# a run that starts, ends, resumes or is deleted changes one of these
_FINGERPRINT = select(
    func.count(),
    func.sum(RUNS.c.start_time),
    func.sum(RUNS.c.end_time),
    func.sum(case((RUNS.c.status == "RUNNING", 1))),
).where(_ALIVE)
_ALL_RUNS = select(RUNS.c.run_uuid, RUNS.c.name, RUNS.c.status, RUNS.c.start_time, RUNS.c.end_time).where(_ALIVE)
