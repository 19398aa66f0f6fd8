"""The lineage graph: artifacts, by digest, and the runs that read and made them.

It is held in memory, and every look at it brings it up to date first: one aggregate over MLflow's runs
says whether anything changed, and only what did is read again. A graph of 20,000 artifacts is so read in
a second once, and answers in milliseconds.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sqlalchemy import Engine, and_, case, func, or_, select
from sqlalchemy.engine import Connection

from infra.lineage.database import AFTER_INPUTS, INPUTS, RUNS, TAGS, among, rows

LIVE = ("RUNNING", "SCHEDULED")
MANY = 400  # so many changed runs are read faster by one pass over the tags


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
        """Seconds, once it has ended."""
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
        self._stages: dict[str, list[str]] = {}  # execution -> runs, oldest first
        self._makers: dict[str, list[str]] = {}  # digest -> runs that made it, one for each set of inputs
        self._readers: dict[str, list[str]] = {}  # digest -> runs that made something of it
        self._known: dict[str, tuple[object, ...]] = {}
        self._seen: object = None
        self._lock = threading.Lock()

    def refresh(self) -> "Graph":
        """Bring the graph up to what the store has now; returns itself."""
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
        runs, executions = dict(self.runs), {each.run_id: each for each in self.executions.values()}
        for run in gone:
            runs.pop(run, None)
            executions.pop(run, None)
        for run in changed:
            self._place(run, tags[run], runs, executions)
        by_id = {each.id: each for each in executions.values()}
        if runs != self.runs or by_id != self.executions:
            self.connect(runs, by_id)

    def _place(self, run: str, tags: dict[str, str], runs: dict[str, Run], executions: dict[str, Execution]) -> None:
        """Take up one run, as a stage or as an execution; a run that is not Baton's has none of the tags."""
        _, name, status, start, end = self._known[run]
        execution = tags.get("baton.execution")
        if execution is None:
            return
        times = (float(start or 0) / 1000, None if end is None else float(end) / 1000)  # type: ignore[arg-type]
        if tags.get("baton.role") == "execution":
            told = str(name or execution).removesuffix(execution).strip() or execution
            executions[run] = Execution(execution, run, told, str(status), *times)
        else:
            inputs = {key.removeprefix(INPUTS): value for key, value in sorted(tags.items()) if key.startswith(INPUTS)}
            cached, output = tags.get("baton.cached") == "true", tags.get("baton.output")
            runs[run] = Run(run, str(name or "stage"), str(status), *times, execution, cached, output, inputs)

    def connect(self, runs: dict[str, Run], executions: dict[str, Execution]) -> None:
        """The edges. Who made an artifact again from the same inputs, or had it from the cache, is not another
        maker: the first one stands for all."""
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
        # the runs first: who looks up an edge of the old graph meanwhile finds its run in the new one
        self.runs, self.executions, self._stages, self._readers = runs, executions, dict(stages), dict(readers)
        self._makers = {digest: list(each.values()) for digest, each in makers.items()}

    # what is asked of it

    def is_artifact(self, node: str) -> bool:
        return node in self._makers or node in self._readers

    def __contains__(self, node: str) -> bool:
        return node in self.runs or self.is_artifact(node)

    def resolve(self, digest: str) -> str:
        """The artifact whose digest begins so. Raises UnknownNode."""
        if self.is_artifact(digest):
            return digest
        digests = self._makers.keys() | self._readers.keys()
        found = [each for each in digests if each.startswith(digest)] if len(digest) >= 6 else []
        if len(found) != 1:
            raise UnknownNode(f"{digest}: {'no artifact has' if not found else 'several artifacts have'} this digest")
        return found[0]

    def stages(self, execution: str) -> list[Run]:
        """The stages of an execution, oldest first."""
        return [self.runs[run] for run in self._stages.get(execution, ())]

    def parents(self, node: str) -> list[str]:
        """An artifact's makers; what a run read."""
        if node in self.runs:
            return list(dict.fromkeys(self.inputs(node).values()))
        return self._makers.get(node, [])

    def children(self, node: str) -> list[str]:
        """The runs that made something of an artifact; what a run made."""
        if node in self.runs:
            output = self.runs[node].output
            return [output] if output else []
        return self._readers.get(node, [])

    def inputs(self, run: str) -> dict[str, str]:
        """What a run read; of one that was cached before Baton noted that, what the maker read."""
        found = self.runs[run]
        if found.inputs or not found.cached or not found.output:
            return found.inputs
        return next((self.runs[maker].inputs for maker in self._makers.get(found.output, ())), {})

    def uses(self, digest: str) -> list[Run]:
        """All runs whose result it is, cached ones too, oldest first."""
        found = [run for run in self.runs.values() if run.output == digest]
        return sorted(found, key=lambda run: (run.started, run.id))

    def ancestors(self, node: str) -> list[str]:
        """Artifacts and runs that it comes from, nearest first."""
        return list(self._reach(node, self.parents))

    def descendants(self, node: str) -> list[str]:
        """Artifacts and runs that come from it, nearest first."""
        return list(self._reach(node, self.children))

    def path(self, a: str, b: str) -> list[str]:
        """Every node on a way from `a` to `b`, or from `b` to `a`, in the order of making; none when neither
        comes from the other."""
        for start, end in ((a, b), (b, a)):
            behind, ahead = self._reach(end, self.parents), self._reach(start, self.children)
            if start in behind:
                between = {start: 0, end: 0} | {node: 0 for node in ahead if node in behind}
                return self.in_order(between)
        return [a] if a == b and a in self else []

    def in_order(self, nodes: Iterable[str]) -> list[str]:
        """Parents before children; a circle (equal contents can close one) is cut somewhere."""
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

    def _reach(self, node: str, step: Callable[[str], list[str]]) -> dict[str, int]:
        """What can be reached, with its distance. Raises UnknownNode."""
        if node not in self:
            raise UnknownNode(f"{node}: no artifact and no run has this name")
        found, waiting = {node: 0}, deque([node])
        while waiting:
            at = waiting.popleft()
            for other in step(at):
                if other not in found:
                    found[other] = found[at] + 1
                    waiting.append(other)
        del found[node]
        return found


_WANTED_TAGS = or_(
    TAGS.c.key.in_(("baton.execution", "baton.output")),
    and_(TAGS.c.key >= INPUTS, TAGS.c.key < AFTER_INPUTS),
    and_(TAGS.c.key == "baton.role", TAGS.c.value == "execution"),
    and_(TAGS.c.key == "baton.cached", TAGS.c.value == "true"),
)
_ALIVE = RUNS.c.lifecycle_stage == "active"
# a run that is new, ends, is taken up again or is deleted changes one of these
_FINGERPRINT = select(
    func.count(),
    func.sum(RUNS.c.start_time),
    func.sum(RUNS.c.end_time),
    func.sum(case((RUNS.c.status == "RUNNING", 1))),
).where(_ALIVE)
_ALL_RUNS = select(RUNS.c.run_uuid, RUNS.c.name, RUNS.c.status, RUNS.c.start_time, RUNS.c.end_time).where(_ALIVE)
