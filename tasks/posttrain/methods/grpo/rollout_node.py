"""Run GRPO's rollout servers on the trainer's machine or on separate machines.

python -m baton.tasks.posttrain.methods.grpo.rollout_node JOB_DIR        on each machine of `rollout_servers.nodes`
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton.infra.process.torchrun_env import ADDRESS
from baton.tasks.core.job import Job, StageError, last_json_line, main
from baton.tasks.posttrain.methods.grpo.rollout_servers import (
    LOCAL,
    RolloutServerLost,
    RolloutServers,
    ended,
    start_engines,
    stop,
)
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.one_gpu import GPUS

POLL_S = 1.0


@contextmanager
def open_servers(job: Job, spec: GRPOSpec) -> Iterator[RolloutServers | None]:
    """Listen for the spec's servers, and start those of this machine. Yields None if the spec has no servers. For the
    trainer's first process."""
    rollouts = spec.rollout_servers
    if rollouts is None:
        yield None
        return
    address = os.environ[ADDRESS] if rollouts.nodes else LOCAL
    timeout_s = 0.9 * spec.survival.hang_timeout_s  # less than the launcher's, since this error names the server
    with RolloutServers(job.directory, rollouts.count, timeout_s, address) as servers:
        if not rollouts.nodes:
            names = [str(number) for number in range(rollouts.engines)]
            servers.start(names, _gpus(spec.layout.processes, rollouts.gpus))
        yield servers


def work(job: Job) -> None:
    """Run this machine's servers until the trainer ends."""
    spec = job.spec(GRPOSpec)
    assert spec.rollout_servers is not None
    machine = os.environ["NODE_RANK"]
    names = [f"{machine}-{number}" for number in range(spec.rollout_servers.engines)]
    engines = start_engines(job.directory, names, _gpus(0, spec.rollout_servers.gpus))
    try:
        job.heart.beat(_steps(job), "rollout")
        while any(engine.poll() is None for engine in engines):
            time.sleep(POLL_S)
            job.heart.beat(_steps(job), "rollout")  # also before an error, since only progress leads to a restart
            for name, engine in zip(names, engines, strict=True):
                if engine.poll():
                    raise RolloutServerLost(ended(job.directory, name, f"ended with exit code {engine.returncode}"))
    finally:
        stop(engines)


def _gpus(first: int, count: int) -> list[str]:
    """Return `count` GPUs of this machine after the first `first`; none on a machine without GPUs. Raises
    StageError."""
    if GPUS and len(GPUS) < first + count:
        used = f" beside the trainer's {first}" if first else ""
        raise StageError(
            f"rollout_servers: engines x tensor_parallel need {count} GPUs{used}, this machine has {len(GPUS)}; "
            "lower one of them, or set rollout_servers.nodes"
        )
    return GPUS[first : first + count]


def _steps(job: Job) -> int:
    """Return the number of the trainer's completed steps."""
    return int(last_json_line(job.metrics).get("step", 0))


if __name__ == "__main__":
    while not Path(sys.argv[1], "spec.json").exists():  # node 0 writes the file
        time.sleep(POLL_S)
    main(work)
