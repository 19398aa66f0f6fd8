"""Run the post-training method of a job.

python -m baton.tasks.posttrain.engine JOB_DIR        inputs: model (HFModel), rows (Rows)
"""

import baton.tasks.posttrain.one_gpu  # noqa: F401 - before torch looks for GPUs

# isort: split
from pkgutil import resolve_name

from baton.infra.process.imports import large_imports
from baton.tasks.core.job import Job, main
from baton.tasks.posttrain.methods import METHODS


def work(job: Job) -> None:
    with large_imports():
        import baton.tasks.posttrain.trainer  # noqa: F401 - TRL, which every method uses

        train = resolve_name(METHODS[job.stage].method.trainer)
    train(job)


if __name__ == "__main__":
    main(work)
