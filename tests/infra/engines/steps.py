"""An engine that appears to train: steps with a gloo all-reduce, heartbeats, and a checkpoint after every second step.
One rank fails at the step that its spec names, the first time or every time."""

import atexit
import json
import os
import signal
import time
from typing import Literal

import torch
import torch.distributed as dist

from baton.infra.storage.durable import write_json
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.spec import Spec


class StepsSpec(Spec):
    what: Literal[
        "nothing", "loops", "computes for ever", "is stopped", "is killed", "is killed unnoticed", "raises", "refuses",
        "does not end", "ends silently", "waits for another",
        "is slow", "fills the disk",
    ] = "nothing"  # fmt: skip
    rank: int = 1
    step: int = 3
    once: bool = False
    then: str = ""  # the failure in the second start
    steps: int = 6


def work(job: Job) -> None:
    spec = job.spec(StepsSpec)
    signal.signal(signal.SIGTERM, lambda signum, frame: None)  # a real engine would save after the current step
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with (job.work / f"starts-{rank}").open("a") as starts:
        starts.write("started\n")
    job.heart.beat(0, "start")
    checkpoint = job.work / "checkpoint.json"
    step, total = json.loads(checkpoint.read_text()) if checkpoint.exists() else (0, 0.0)
    while step < spec.steps:
        print(f"rank {rank} takes step {step}")
        job.heart.beat(step, "data")
        wrong = step == spec.step and not (spec.once and _starts(job, rank) > 1)
        if wrong and rank == spec.rank:
            _go_wrong(job, spec.then if spec.then and _starts(job, rank) == 2 else spec.what)
        job.heart.beat(step, "forward-backward")
        if wrong and spec.what in BETWEEN_RANKS:
            BETWEEN_RANKS[spec.what](rank == spec.rank)
        part = torch.tensor(float((rank + 1) * (step + 1)))
        dist.all_reduce(part)
        step, total = step + 1, total + part.item()
        if step % 2 == 0 and rank == 0:
            job.heart.beat(step, "checkpoint")
            write_json(checkpoint, [step, total])
    if rank == 0:
        job.output.mkdir(exist_ok=True)
        (job.output / "total.txt").write_text(f"{total:g}")
        job.finish()
    dist.destroy_process_group()


def _starts(job: Job, rank: int) -> int:
    return len((job.work / f"starts-{rank}").read_text().split())


def _go_wrong(job: Job, what: str) -> None:
    match what:
        case "loops":
            _loop()
        case "is stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "is killed" | "is killed unnoticed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raises":
            raise ValueError("rank-specific trouble")
        case "refuses":
            raise StageError("the last rank has no data: take fewer ranks")
        case "does not end":
            atexit.register(time.sleep, 600)
            raise ValueError("rank-specific trouble")
        case "ends silently":
            os._exit(3)
        case "is slow":
            for _ in range(10):
                time.sleep(0.5)
                job.heart.beat(3, "data")
        case "fills the disk":
            (job.work / "big").write_bytes(bytes(1 << 26))


def _loop() -> None:
    while True:
        time.sleep(0.01)


def _compute_for_ever(to_blame: bool) -> None:
    if to_blame:
        _loop()


def _wait_for_another(to_blame: bool) -> None:
    dist.recv(torch.zeros(1))


def _notice_nothing(to_blame: bool) -> None:
    """Wait as in an NCCL collective, which does not notice the death of a peer."""
    time.sleep(600)


BETWEEN_RANKS = {
    "computes for ever": _compute_for_ever,
    "waits for another": _wait_for_another,
    "is killed unnoticed": _notice_nothing,
}


if __name__ == "__main__":
    main(work)
