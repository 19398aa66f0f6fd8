"""The rounds of a stage, on one machine or on several that share the job's folder.

Each machine works on its share of a round, and begins the next when all are done. On a Flyte cluster, whose pods share
no folder, each of several pods works on a share of the first round only, and stores the results.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

from baton.infra.process.torchrun_env import Node
from baton.infra.storage.durable import write_json
from baton.tasks.core.job import Job
from baton.tasks.data.rounds import Amount, Progress, Work, Workers, dealt, wait_for

SPEEDS = "speeds.json"

T = TypeVar("T")


class Span(NamedTuple):
    """The part of a stage's progress that a round covers."""

    start: float  # percentage of the stage's time, about
    end: float
    unit: str  # the unit of its items, such as "files"
    last: bool = False  # the other machines do not wait for its end, since the first one may remove its outputs


class Speed(NamedTuple):
    """This machine's work in a round; outputs that existed before count only as items."""

    round: str
    items: int
    seconds: float
    cpu_s: float  # CPU time of the processes that worked on the items
    memory: int  # bytes, of the largest of these processes at its peak
    documents: int
    text_bytes: int
    tokens: int

    def text(self) -> str:
        """Describe it: `8 items in 20.1 s (39.8 s of CPU), 5,000 documents (249/s), …, largest process 300 MB`."""
        seconds, cpu_s = max(1e-6, self.seconds), max(1e-6, self.cpu_s)
        parts = [f"{self.items:,} items in {seconds:,.1f} s ({cpu_s:,.1f} s of CPU)"]
        if self.documents:
            parts.append(f"{self.documents:,} documents ({self.documents / seconds:,.0f}/s)")
            megabytes = self.text_bytes / 1e6
            parts.append(f"{megabytes:,.0f} MB of text ({megabytes / cpu_s:,.2f} MB for each second of a core)")
        if self.tokens:
            parts.append(f"{self.tokens:,} tokens ({self.tokens / seconds:,.0f}/s)")
        return ", ".join([*parts, f"largest process {self.memory / 1e6:,.0f} MB"])


@dataclass
class Rounds:
    """Runs the rounds, shows their progress and measures their speed."""

    job: Job
    spans: Mapping[str, Span]
    pool: Workers
    machine: Node = field(default_factory=Node)
    speeds: list[Speed] = field(default_factory=list)

    def run(self, name: str, work: Work[T], items: Sequence[T], outputs: Sequence[Path], sizes: Sequence[int]) -> None:
        """Work on the items, which write these files or folders. Raises Ended on machines other than the first."""
        span, began = self.spans[name], time.monotonic()

        def show(progress: Progress) -> None:
            if self.machine.rank:
                return
            part = span.start + (span.end - span.start) * progress.fraction
            shown = {span.unit: f"{progress.done:,}/{len(items):,}"}
            self.job.progress(part, 100, "%", round=name, **shown, **_rates(progress.amount, time.monotonic() - began))

        mine = [number for number, rank in enumerate(dealt(sizes, self.machine.nodes)) if rank == self.machine.rank]
        ended = self.pool.run(work, [items[number] for number in mine], [sizes[number] for number in mine], show)
        self.speeds.append(Speed(name, len(mine), time.monotonic() - began, *ended.used, *ended.amount))
        print(f"{name}: {self.speeds[-1].text()}", flush=True)
        if not (self.machine.rank and span.last):
            result = self.job.directory / "result.json" if self.machine.rank else None
            wait_for(outputs, lambda done: show(Progress(done / len(items), done, ended.amount)), result)

    def record(self) -> None:
        """Note the speeds in the artifact's record, for its page."""
        write_json(self.job.record / SPEEDS, [speed._asdict() for speed in self.speeds])


def _rates(amount: Amount, seconds: float) -> dict[str, str]:
    """The amounts and rates in the progress bar."""
    shown = {"documents": f"{amount.documents:,}", "documents/s": f"{amount.documents / max(1e-6, seconds):,.0f}"}
    return shown | ({"tokens/s": f"{amount.tokens / max(1e-6, seconds):,.0f}"} if amount.tokens else {})
