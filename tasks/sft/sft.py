"""SFT with TRL: the model learns to write one statement and to stop.

python -m tasks.sft.sft JOB_DIR        inputs: model (HFModel), corpus (Corpus)
"""

from typing import Any

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from tasks.job import Job, main
from tasks.posttrain.examples import Example, check_positions, examples
from tasks.posttrain.trainer import arguments, finish, fit, load_model
from tasks.sft.spec import SFTSpec

METRICS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "entropy": "entropy",
    "mean_token_accuracy": "token_accuracy",
    "num_input_tokens_seen": "tokens",  # the Trainer's count is in its checkpoints, TRL's num_tokens is not
}


def work(job: Job) -> None:
    spec, source = job.spec(SFTSpec), job.input("model")
    model, tokenizer = load_model(source)
    check_positions(model, spec)
    chosen = examples(job.input("corpus"), tokenizer, spec, spec.steps * spec.batch_size)
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(
            **arguments(job, spec),
            include_num_input_tokens_seen="non_padding",
            max_length=None,  # the examples are within the limits
            lr_scheduler_type="cosine",
            train_sampling_strategy="group_by_length",  # little padding
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=Dataset.from_list([labelled(example) for example in chosen]),
        processing_class=tokenizer,
    )
    fit(trainer, job, METRICS)
    finish(job, model, source, "sft")


def labelled(example: Example) -> dict[str, Any]:
    """Token ids, and the same as labels where the loss is: on the statement and its end."""
    return {
        "input_ids": example.prompt_ids + example.statement_ids,
        "labels": [-100] * len(example.prompt_ids) + example.statement_ids,
    }


if __name__ == "__main__":
    main(work)
