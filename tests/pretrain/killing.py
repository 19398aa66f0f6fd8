"""kill -9 a run at random moments."""

import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from baton.infra.process.heartbeat import rank_file, read_beats
from baton.tasks.core.manifest import MANIFEST, read_manifest
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.spec import CheckpointPolicy, PretrainSpec
from tests.pretrain.tiny import metrics, pretrain_job, tiny_spec

LAYOUTS = {
    "one process": Layout(micro_batch=2),
    "DP2-DO": Layout(micro_batch=2, processes=2, distributed_optimizer=True),
    "TP2": Layout(micro_batch=2, processes=2, tensor=2),
    "PP2": Layout(micro_batch=2, processes=2, pipeline=2),
}


def killable(layout: Layout, steps: int) -> PretrainSpec:
    """Return a spec for which a checkpoint is in progress most of the time."""
    checkpoints = CheckpointPolicy(every=2, keep_last=2, keep_every=10)
    return tiny_spec(steps=steps, layout=layout, checkpoints=checkpoints, validate_every=steps // 2)


class Run(Protocol):
    def succeed(self) -> None: ...
    def alive(self) -> bool: ...
    def kill(self) -> None: ...


@dataclass
class Kills:
    """The expected number of kills, and the run's phases when it was killed."""

    expected: int
    found: Counter[str] = field(default_factory=Counter)

    def left(self) -> int:
        return self.expected - self.found.total()


def undisturbed(start: Callable[[Path], Run], job: Path) -> float:
    """Run to the end, and return the duration in seconds."""
    began = time.monotonic()
    start(job).succeed()
    return time.monotonic() - began


def kill_again_and_again(
    start: Callable[[Path], Run],
    folder: Path,
    data: Path,
    spec: PretrainSpec,
    seconds: float,
    kills: Kills,
    seed: str,
    resume: Path | None = None,
) -> list[Path]:
    """Start runs, kill them at random moments within `seconds`, and restart them until all kills are done and each
    run has ended. Return the finished jobs."""
    chance = random.Random(seed)
    jobs: list[Path] = []
    while kills.left():
        job = pretrain_job(folder / f"run-{len(jobs)}", data, spec, resume=resume)
        jobs.append(job)
        while not _ended(job):
            rank_file(job, 0, "json").unlink(missing_ok=True)  # a file of the previous run
            run = start(job)
            deadline = time.monotonic() + chance.uniform(0, seconds)
            try:
                while kills.left() and run.alive() and time.monotonic() < deadline:
                    time.sleep(0.002)
                if not kills.left() or not run.alive():
                    run.succeed()
                    continue
            finally:
                run.kill()
            if not _ended(job):
                kills.found[_was_at(job)] += 1
    return jobs


def _ended(job: Path) -> bool:
    """Return whether the job has ended, so that baton.infra.process.launch would not restart it."""
    return (job / "result.json").exists() and (job / "output" / MANIFEST).exists()


def _was_at(job: Path) -> str:
    beat = read_beats(job, [0]).get(0)
    phase = (beat and beat.phase) or "start"
    incomplete = any(not (path / MANIFEST).exists() for path in (job / "work" / "checkpoints").glob("step-*"))
    return f"{phase} + a save in the background" if incomplete and phase != "start" else phase


def outcome(job: Path) -> dict[str, Any]:
    """Return all results that must not depend on a run's history."""
    facts = read_manifest(job / "output").facts
    return {"metrics": metrics(job), "digest": read_manifest(job / "output").digest, "facts": facts}


def again_in(job: Path, layout: Layout) -> None:
    """Change a job's layout, as baton.infra.process.launch does when a recipe's layout changes."""
    path = job / "spec.json"
    words = json.loads(path.read_text())
    words["spec"]["layout"] = layout.model_dump(mode="json")
    path.write_text(json.dumps(words))


def copy(job: Path, folder: Path) -> Path:
    return Path(shutil.copytree(job, folder))
