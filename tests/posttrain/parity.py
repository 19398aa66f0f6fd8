"""Run several jobs in the same processes, since each start of the libraries takes longer than a tiny job.

[torchrun --standalone --nproc-per-node N] -m tests.posttrain.parity JOB_DIR…
"""

import os
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState

from tasks.job import open_job
from tasks.posttrain import process, trainer


class Stopped(Exception):
    """A job was stopped at a checkpoint."""


def engine_of(directory: Path) -> Any:
    """The module of a job's engine; that of GRPO gets its rollouts from recorded.py."""
    stage = open_job(directory).stage
    engine = import_module(f"tasks.{stage}.{stage}")
    if stage == "grpo":
        from tests.posttrain.recorded import generate_recorded

        vars(engine)["generate_live"] = partial(generate_recorded, directory)
    return engine


def main() -> None:
    fit, on_save = trainer.fit, trainer.Reporter.on_save
    stop_after = int(os.environ.get("STOP_AFTER", "1000"))  # the step whose checkpoint ends each job

    def save_and_stop(self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        on_save(self, args, state, control, **more)
        if state.global_step >= stop_after:
            raise Stopped

    trainer.Reporter.on_save = save_and_stop  # type: ignore[method-assign]

    def fit_and_name_the_wrapper(built: Any, job: Any, *arguments: Any, **more: Any) -> None:
        fit(built, job, *arguments, **more)
        if process.is_first():
            (job.directory / "wrapper").write_text(type(built.model_wrapped).__name__)

    for directory in map(Path, sys.argv[1:]):
        job = open_job(directory)
        engine = engine_of(directory)
        vars(engine)["fit"] = fit_and_name_the_wrapper
        with suppress(Stopped):
            engine.work(job)
        process.barrier()
        AcceleratorState._reset_state(reset_partial_state=True)
        os.environ.pop("ACCELERATE_USE_FSDP", None)  # set by Accelerate


if __name__ == "__main__":
    main()
