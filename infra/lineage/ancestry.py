"""Find the run that made each artifact, and its inputs: the edges of the lineage graph.

Equal contents have equal digests, so several runs may have the same output. Its *maker* is the run that output it
first. The artifact that a run read existed before that run began, so its maker *as of that run* is

1. the run of the same execution that made it, if it began before;
2. else, if the same execution took it from the cache, the maker: the first run with that output and those inputs;
3. else the first run of any execution that had made it by then.

A run that took its output from the cache stands for its maker only where the maker is not on record, and one whose
output is among its inputs (relations.py) never does. So ancestors are older than their descendants, and there is no
cycle.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from baton.infra.lineage.liveness import LIVE
from baton.infra.tracking.relations import Relation, recorded


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
    kind: str | None = None  # kind of the output
    related: Relation | None = None  # recorded relation of the output to the inputs

    @property
    def live(self) -> bool:
        return self.status in LIVE

    @property
    def took(self) -> float | None:
        """Duration in seconds; None until the run has ended."""
        return None if self.ended is None else self.ended - self.started

    @property
    def sources(self) -> Mapping[str, str]:
        """The inputs that the output was made from."""
        return self.relation.sources(self.output, self.inputs)

    @property
    def relation(self) -> Relation:
        return self.related or recorded(self.kind)

    @property
    def content(self) -> set[str]:
        """The digests of the sources whose content is in the output."""
        return {*self.relation.contents(self.output, self.inputs).values()}

    @property
    def handed_on(self) -> bool:
        """True if the output is one of the inputs, unchanged."""
        return self.output is not None and self.output in self.inputs.values()


class Ancestry:
    """The edges between runs and artifacts; a maker is named by its run's id."""

    def __init__(self, runs: Mapping[str, Run]) -> None:
        self.runs = runs
        self.by_age = sorted(runs.values(), key=_age)  # the oldest first
        self._place = {run.id: place for place, run in enumerate(self.by_age)}
        self._uncached: dict[str, list[Run]] = defaultdict(list)  # digest -> runs with this output, oldest first
        self._known: dict[str, list[Run]] = defaultdict(list)  # also those that took it from the cache
        self._bare: dict[str, list[Run]] = defaultdict(list)  # cached, recorded without inputs
        self._by_execution: dict[tuple[str, str], list[Run]] = defaultdict(list)  # cached ones last
        outputs = [(run, run.output) for run in self.by_age if run.output and not run.handed_on]
        for run, output in outputs:
            if not run.cached:
                self._uncached[output].append(run)
                self._by_execution[run.execution, output].append(run)
            (self._bare if run.cached and not run.inputs else self._known)[output].append(run)
        for run, output in outputs:
            if run.cached and run.inputs:
                self._by_execution[run.execution, output].append(run)
        self._makers: dict[str, str | None] = {}
        self._readers: dict[str, list[str]] = defaultdict(list)
        self._consumers: dict[str, list[str]] = defaultdict(list)
        makers = [run for run, _ in outputs if self._maker_of(run) is run]
        self.maker_ids = {run.id for run in makers}  # runs that made their output, or stand for the one that did
        older = self._older
        self._origins = {run.id: {digest: older(run, digest) for digest in run.sources.values()} for run in makers}
        for run in makers:
            for digest, earlier in self._origins[run.id].items():
                self._readers[digest].append(run.id)
                if maker := earlier or self._late(run, digest):
                    self._origins[run.id][digest] = maker
                    self._consumers[maker].append(run.id)

    def maker(self, digest: str) -> str | None:
        """The run that made an artifact first; None if it is not on record."""
        if digest not in self._makers:
            records = chain(self._known.get(digest, ()), self._bare.get(digest, ()))
            candidates = (self._maker_of(run).id for run in records)
            self._makers[digest] = next((maker for maker in candidates if not self._comes_from(maker, digest)), None)
        return self._makers[digest]

    def origins(self, run: str) -> dict[str, str | None]:
        """The artifacts that a run's output is made from, each with its maker as of then."""
        if run not in self._origins:  # a run that is not a maker
            reader = self.runs[run]
            self._origins[run] = {
                digest: self._older(reader, digest) or self._late(reader, digest) for digest in reader.sources.values()
            }
        return self._origins[run]

    def readers(self, digest: str) -> list[str]:
        """The runs that made another artifact from this one, oldest first."""
        return self._readers.get(digest, [])

    def consumers(self, run: str) -> list[str]:
        """The runs that made another artifact from what this one made, oldest first."""
        return self._consumers.get(run, [])

    def first_output(self, run: str) -> str | None:
        """The output of a run, if the run is its maker."""
        output = self.runs[run].output
        return output if output and self.maker(output) == run else None

    def ancestors(self, node: str) -> list[str]:
        """Upstream artifacts and runs of an artifact or a run, nearest first."""
        nodes: dict[str, None] = {}
        level = [node] if node in self.runs else [maker] if (maker := self.maker(node)) else []
        while level:
            nodes |= dict.fromkeys(level)
            above = [origin for run in level for origin in self.origins(run).items()]
            nodes |= dict.fromkeys(digest for digest, _ in above)
            level = list(dict.fromkeys(maker for _, maker in above if maker and maker not in nodes))
        nodes.pop(node, None)
        return list(nodes)

    def descendants(self, node: str) -> list[str]:
        """Downstream artifacts and runs, nearest first: the artifacts are those that have `node` as an ancestor."""
        nodes = dict.fromkeys([node])
        level = [node] if node in self.runs else self.readers(node)
        while level := [run for run in level if self.first_output(run) or self.consumers(run)]:
            nodes |= dict.fromkeys(level)
            nodes |= dict.fromkeys(output for run in level if (output := self.first_output(run)))
            level = list(dict.fromkeys(run for maker in level for run in self.consumers(maker) if run not in nodes))
        del nodes[node]
        return list(nodes)

    def history(self, node: str) -> list[str]:
        """The upstream runs of an artifact or a run, itself or its maker included, parents first."""
        first = node if node in self.runs else self.maker(node)
        return [] if first is None else self.in_order([first, *self._upstream(first)])

    def path(self, a: str, b: str) -> list[str]:
        """Every artifact and run between the artifacts `a` and `b`, both included, parents first; empty when neither is
        an ancestor of the other."""
        for start, end in ((a, b), (b, a)):
            nodes = dict.fromkeys([start])
            for run in self.history(end):
                if any(digest == start or maker in nodes for digest, maker in self.origins(run).items()):
                    nodes |= dict.fromkeys([run, self.runs[run].output or run])
            if end in nodes:
                return list(nodes)
        return []

    def in_order(self, runs: Iterable[str]) -> list[str]:
        """Topological order, parents first."""
        chosen, placed, seen = dict.fromkeys(runs), dict[str, None](), set[str]()
        for first in chosen:
            waiting = [(first, False)]
            while waiting:
                run, done = waiting.pop()
                if done:
                    placed[run] = None
                elif run not in seen:
                    seen.add(run)
                    waiting.append((run, True))
                    waiting += [(maker, False) for maker in self.origins(run).values() if maker in chosen]
        return list(placed)

    def _upstream(self, run: str) -> Iterator[str]:
        return (node for node in self.ancestors(run) if node in self.runs)

    def _maker_of(self, record: Run) -> Run:
        """The first run that made a record's output from its inputs before it; the record itself if none is known."""
        if not record.cached:
            return record
        inputs = sorted(record.inputs.values())
        makers = (run for run in self._uncached.get(record.output or "", ()) if sorted(run.inputs.values()) == inputs)
        return next((run for run in makers if self._precedes(run, record)), record)

    def _older(self, reader: Run, digest: str) -> str | None:
        """The maker of an artifact as of a run that read it."""
        key = reader.execution, digest
        for records in (self._by_execution.get(key), self._known.get(digest), self._bare.get(digest)):
            for run in records or ():
                if self._precedes(run, reader):
                    return self._maker_of(run).id
        return None

    def _late(self, reader: Run, digest: str) -> str | None:
        """The maker in the same execution that began later by the clock of its machine."""
        candidates = (self._maker_of(run).id for run in self._by_execution.get((reader.execution, digest), ()))
        return next((maker for maker in candidates if reader.id not in (maker, *self._upstream(maker))), None)

    def _precedes(self, record: Run, reader: Run) -> bool:
        """Return whether a run's output existed when another run began. Runs of one execution do not overlap."""
        if record.execution == reader.execution:
            return self._place[record.id] < self._place[reader.id]
        return record.ended is not None and record.ended <= reader.started

    def _comes_from(self, maker: str, digest: str) -> bool:
        """Return whether a run made an artifact from a descendant of that artifact, which then already existed."""
        first = min((self._place[reader] for reader in self.readers(digest)), default=len(self._place))
        return first < self._place[maker] and digest in self.ancestors(maker)


def _age(run: Run) -> tuple[float, float, str]:
    return run.started, run.ended or float("inf"), run.id
