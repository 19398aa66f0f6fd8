"""A toy training: a slow engine with checkpoints and metrics. Each start appends the step that it continues from to
the file that TOY_STARTS names."""

import os
import signal
import time
from pathlib import Path

from blake3 import blake3
from pydantic import Field

from baton.infra.storage.durable import remove
from baton.tasks.core.checkpoints import KIND, CheckpointFolder
from baton.tasks.core.job import Job, main
from baton.tasks.core.manifest import write_manifest
from baton.tasks.core.spec import StageSpec


class CountingSpec(StageSpec):
    """The spec of a stage that counts up to a limit."""

    steps: int = Field(20, ge=1, description="how far")
    every: int = Field(5, ge=1, description="steps between checkpoints")
    step_s: float = Field(0.2, ge=0, description="seconds that a step takes")


def work(job: Job) -> None:
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    spec, folder = job.spec(CountingSpec), CheckpointFolder(job.work / "checkpoints", "step-")
    newest = folder.newest()
    step = folder.step(newest) if newest else 0
    state = (newest / "state").read_text() if newest else ""
    job.forget_after(step)
    with Path(os.environ["TOY_STARTS"]).open("a") as starts:
        starts.write(f"{step}\n")
    while step < spec.steps:
        time.sleep(spec.step_s)
        step += 1
        state = blake3(f"{state} {step}".encode()).hexdigest()
        job.metric(step, loss=1 / step)
        if step % spec.every == 0 or stopping:
            checkpoint = folder.path / f"step-{step}"
            checkpoint.mkdir(parents=True)
            (checkpoint / "state").write_text(state)
            job.sync_metrics()
            write_manifest(checkpoint, KIND, {"step": step})
            for old in folder.complete()[:-1]:
                remove(old)
        if stopping:
            raise SystemExit(128 + signal.SIGTERM)
    job.output.mkdir(exist_ok=True)
    (job.output / "state.txt").write_text(state)
    job.finish(letters=len(state))
    folder.remove_all()


if __name__ == "__main__":
    main(work)
