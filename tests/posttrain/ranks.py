"""Post-training engines as processes, forked from one that has the libraries loaded (tests/forked.py)."""

import json
import os
import sys
from pathlib import Path

import tests.posttrain.tiny  # noqa: F401 - it names the libraries
from tests.forked import Forked
from tests.pretrain import ranks

TIMEOUT_S = 1000.0  # the limit for many jobs
NEVER = sys.maxsize


def engine(job: Path) -> ranks.Ranks:
    """Run an engine on a job in the layout of its spec; GRPO's rollouts are those of recorded.py."""
    layout = json.loads((job / "spec.json").read_text())["spec"]["layout"]
    return ranks.Ranks(layout["processes"], job, _engine, job)


def _engine(job: Path) -> None:
    os.environ["TORCHELASTIC_RUN_ID"] = "tests"  # read when baton.tasks.posttrain.process is imported
    from baton.tasks.core.job import main
    from tests.posttrain.parity import train

    sys.argv = ["tests.posttrain.ranks", str(job)]
    main(train)


def run_all(jobs: list[Path], processes: int | None, stop_after: int = NEVER) -> None:
    """Run jobs one after the other in the same ranks, each up to the checkpoint of a step. With None, run them in a
    process without torchrun's environment."""
    logs = jobs[0]
    if processes is None:
        log = logs / "alone.txt"
        assert Forked(log, _alone, jobs, stop_after).wait(TIMEOUT_S) == 0, log.read_text()[-5000:]
    else:
        ranks.Ranks(processes, logs, _ranks, jobs, stop_after).succeed(TIMEOUT_S)


def _alone(jobs: list[Path], stop_after: int) -> None:
    from tests.posttrain.parity import run

    run(jobs, stop_after)


def _ranks(jobs: list[Path], stop_after: int) -> None:
    os.environ["TORCHELASTIC_RUN_ID"] = "tests"
    _alone(jobs, stop_after)
