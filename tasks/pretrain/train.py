"""Pretrain a model with Megatron-Core, under torchrun.

    torchrun --standalone --nproc-per-node 1 -m baton.tasks.pretrain.train JOB_DIR

Inputs are `data`, a TokenizedCorpus, blended with `more.0`, …, and optionally initial weights (init_from.py). Outputs
are output/checkpoint (dist_checkpointing: weights, optimizer, schedule, RNG, data position) and output/model.json (the
model's spec). When restarted in the same job directory, the run continues from the newest complete checkpoint, to the
same loss, bit for bit. SIGTERM ends it after the current step, with a checkpoint.

A run may be restarted with another layout.
"""

import os

from baton.infra.process.imports import large_imports
from baton.tasks.core.job import Job, main
from baton.tasks.pretrain.spec import PretrainSpec


def work(job: Job) -> None:
    spec = job.spec(PretrainSpec)
    if spec.layout.tensor > 1:
        # One queue, so that kernels start in launch order. Megatron relies on it to overlap tensor parallel collectives
        # with matrix products. CUDA reads the variable at initialization, so it must be set before importing torch
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    with large_imports():
        from baton.tasks.pretrain.process import distributed
        from baton.tasks.pretrain.trainer import Trainer

    with distributed(spec.layout, spec.seed):
        trainer = Trainer(job, spec)
        trainer.end_on_sigterm()
        trainer.resume()
        validation_loss = trainer.run()
        trainer.hand_over(validation_loss)


if __name__ == "__main__":
    main(work)
