"""How long stages took on this machine's CPU, by the records of earlier executions in Baton's home."""

import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from baton.infra.paths import located
from baton.infra.tracking.machine import machine
from baton.infra.tracking.spool import (
    FINISHED,
    RecordDamaged,
    StageRun,
    executions,
    read_execution,
    read_stage,
    stage_folders,
)
from baton.tasks.hardware.memory import CPU
from baton.tasks.hardware.need import Need
from baton.workflows.checks.run_context import need
from baton.workflows.dag.calls import calls
from baton.workflows.dag.tasks import TASKS
from baton.workflows.plan.cpu import this_cpu
from baton.workflows.recipe import Recipe, context_of

NEWEST = 20  # executions that are looked at
FARTHEST = 3  # powers of two between the estimates of two runs, beyond which one says little about the other


@dataclass(frozen=True)
class EarlierRun:
    """A finished run of a stage."""

    stage: str  # of the engine
    estimate: float  # seconds, by the arithmetic alone
    seconds: float
    started: float  # seconds since the epoch

    @property
    def factor(self) -> float:
        """The time that it took, as a multiple of its estimate."""
        return self.seconds / self.estimate

    def text(self) -> str:
        return f"as fast as on {time.strftime('%Y-%m-%d', time.localtime(self.started))}"


def nearest(stage: str, estimate: float, runs: Iterable[EarlierRun]) -> EarlierRun | None:
    """The run of the same stage whose estimate is nearest to `estimate` seconds; of several, the fastest, since other
    work on the machine only makes them slower. None if no run is similar. `runs`: see `earlier_runs`."""
    similar: dict[EarlierRun, int] = {}
    for run in runs:
        distance = round(abs(math.log2(run.estimate / estimate)))
        if run.stage == stage and distance <= FARTHEST:
            similar[run] = distance
    return min(similar, key=lambda run: (similar[run], run.factor), default=None)


def earlier_runs() -> list[EarlierRun]:
    """The finished runs of the newest executions in the home."""
    return [run for folder in islice(reversed(executions()), NEWEST) for run in _runs(folder)]


def _runs(folder: Path) -> Iterator[EarlierRun]:
    try:
        stages = {run.title: run for run in map(read_stage, stage_folders(folder)) if _is_timed(run)}
        if not stages:
            return
        recipe = Recipe.model_validate_json(json.dumps(read_execution(folder).recipe))
        context = context_of(recipe)
        dag = calls(recipe)
    except (RecordDamaged, ValidationError, OSError):  # another kind of recipe, or another version's
        return
    for call in dag:
        run = stages.get(call.title)
        needed = need(context, call.spec, CPU) if run else None
        if run and run.ended and needed and (estimate := estimated(needed)):
            stage = TASKS[call.stage].task_config.engine.stage
            yield EarlierRun(stage, 3600 * estimate, run.ended - run.started, run.started)


def estimated(needed: Need) -> float | None:
    """The hours of a stage on this machine's CPU by its arithmetic."""
    return needed.hours(this_cpu(needed.precision, needed.processes), None)


def _is_timed(run: StageRun) -> bool:
    """Return whether a run took its whole time on this machine, or one like it, on the CPU."""
    here = machine()
    same = all(run.machine.get(fact) == here[fact] for fact in ("processor", "cores")) and "gpus" not in run.machine
    return same and run.status == FINISHED and not (run.cached or run.placed or run.pod or _is_continued(run))


def _is_continued(run: StageRun) -> bool:
    """Return whether the run continued from the checkpoint of an earlier one."""
    try:
        with Path(located(run.job_dir or ""), "metrics.jsonl").open() as lines:
            return bool(json.loads(next(lines, "{}")).get("time", run.started) < run.started)
    except (OSError, ValueError):
        return False
