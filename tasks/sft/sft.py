"""Supervised fine-tuning with TRL, on rows of kind messages, prompt_completion or text.

python -m tasks.sft.sft JOB_DIR        inputs: model (HFModel), rows (Rows)
"""

import tasks.posttrain.one_gpu  # noqa: F401 - before torch looks for GPUs

# isort: split
from typing import Any

import numpy as np
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from tasks.job import Job, main
from tasks.posttrain.adapter import peft_config
from tasks.posttrain.adapter_files import source_of
from tasks.posttrain.encode import IGNORED, Encoder, loss_of
from tasks.posttrain.rows import choose, columns_of, kind_of, note_epochs
from tasks.posttrain.trainer import arguments, finish, fit, limits_of, load_model, spec_of
from tasks.rows.check import COLUMNS
from tasks.rows.stored import Row
from tasks.sft.spec import SFTSpec

METRICS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "entropy": "entropy",
    "mean_token_accuracy": "token_accuracy",
    "num_input_tokens_seen": "tokens",  # unlike TRL's num_tokens, the Trainer's count is in its checkpoints
}

Learned = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]  # token ids, labels; 4 bytes per token each


def work(job: Job) -> None:
    spec, source = spec_of(job, SFTSpec), source_of(job)
    model, tokenizer = load_model(source, spec)
    limits = limits_of(model, spec)
    kind = kind_of(job, *spec.row_kinds())
    loss = loss_of(spec.loss, kind)
    encoder = Encoder(tokenizer)

    def encode(row: Row) -> Learned:
        ids, labels = encoder.learned(row, loss)
        return np.array(ids, np.int32), np.array(labels, np.int32)

    def tokens(learned: Learned) -> tuple[int, ...]:
        if kind != "prompt_completion" or loss == "all":
            return (len(learned[0]),)
        completion = int((learned[1] != IGNORED).sum())
        return len(learned[0]) - completion, completion

    sequences = spec.steps * spec.batch_size
    if spec.packing:
        taken = sequences * limits.total
        chosen = choose(job, spec.seed, limits, encode, tokens, taken, size=lambda learned: len(learned[0]))
    else:
        taken = sequences
        chosen = choose(job, spec.seed, limits, encode, tokens, taken)
    if unlearned := [name for name in columns_of(job) if name not in COLUMNS[kind]]:
        job.notice(f"columns that are not learned: {', '.join(unlearned)}")
    note_epochs(job, "rows", len(chosen.rows), taken / chosen.amount)
    for text in encoder.notices():
        job.notice(text)
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            **arguments(job, spec, model),
            include_num_input_tokens_seen="non_padding",
            packing=spec.packing,
            max_length=limits.total if spec.packing else None,  # the rows are within the limits
            lr_scheduler_type="cosine",
            train_sampling_strategy="random" if spec.packing else "group_by_length",  # little padding
            dataset_kwargs={"skip_prepare_dataset": not spec.packing},
        ),
        train_dataset=Dataset.from_dict(
            {"input_ids": [ids for ids, _ in chosen.rows], "labels": [labels for _, labels in chosen.rows]}
        ),
        processing_class=tokenizer,
        peft_config=peft_config(spec.adapter, model) if spec.adapter else None,
    )
    fit(trainer, job, METRICS, initial=chosen.counts())
    finish(job, trainer, source, spec, encoder)


if __name__ == "__main__":
    main(work)
