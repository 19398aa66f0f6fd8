"""Run the pretraining engine and stop it after a step as SIGTERM does, with a checkpoint and exit code 143.

STEP=20 torchrun … -m tests.pretrain.until JOB_DIR
"""

import os

from baton.tasks.core.job import Job, main


def work(job: Job) -> None:
    from baton.tasks.pretrain.trainer import Trainer

    def ends(self: Trainer) -> bool:
        return self.state.step == int(os.environ["STEP"])

    Trainer._any_rank_stopping = ends  # type: ignore[method-assign]
    from baton.tasks.pretrain import train

    train.work(job)


if __name__ == "__main__":
    main(work)
