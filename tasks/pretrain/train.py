"""Pretraining with Megatron-Core: the process that torchrun starts.

    torchrun --standalone --nproc-per-node 1 -m tasks.pretrain.train JOB_DIR

In: `data`, a TokenizedCorpus, with `more.0`, … blended in, and what the run begins with, if not random
weights (beginning.py). Out: output/checkpoint (dist_checkpointing: weights, optimizer, schedule, RNG,
data position) and output/model.json (the model's spec). Started again in the same job directory it
continues from the newest complete checkpoint, to the same loss, bit for bit.
SIGTERM ends it after the present step, with a checkpoint.

Any layout of processes may train it, and a resumed run may have another one than it began with.
"""

import os

from tasks.job import Job, main
from tasks.pretrain.spec import PretrainSpec


def work(job: Job) -> None:
    spec = job.spec(PretrainSpec)
    if spec.layout.tensor > 1:
        # One queue: kernels start in the order of their calls. Megatron counts on that where it starts a tensor
        # parallel collective before the product that is to hide it. CUDA reads it when it starts, so before torch
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    from tasks.pretrain.process import distributed
    from tasks.pretrain.trainer import Trainer

    with distributed(spec.layout, spec.seed):
        trainer = Trainer(job, spec)
        trainer.end_on_sigterm()
        trainer.resume()
        validation_loss = trainer.run()
        trainer.hand_over(validation_loss)


if __name__ == "__main__":
    main(work)
