"""DPO with TRL, on rows of kind preference, or on pairs that the model makes itself.

    python -m tasks.dpo.dpo JOB_DIR        inputs: model (HFModel), rows (Rows)

With `pairs`, two parts in one process: vLLM samples the model once on the rows' prompts and the rewards score what it
says (work/pairs keeps the pairs, sealed); then vLLM is closed and TRL trains.
"""

import tasks.posttrain.one_gpu  # noqa: F401 - before torch looks for GPUs

# isort: split
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from tasks.dpo.pairs import Pair, Pairs
from tasks.dpo.sampling import make_pairs, rows_to_ask
from tasks.dpo.spec import DPOSpec, PairsSpec
from tasks.job import Job, main
from tasks.manifest import ArtifactError
from tasks.posttrain.encode import Encoder
from tasks.posttrain.rows import choose, kind_of, say_repeats
from tasks.posttrain.spec import Limits
from tasks.posttrain.trainer import arguments, finish, fit, limits_of, load_model
from tasks.rows.stored import Row

METRICS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "rewards/margins": "margin",
    "rewards/accuracies": "preference_accuracy",
    "logps/chosen": "logp_chosen",
    "logps/rejected": "logp_rejected",
    "entropy": "entropy",
}


class PairTrainer(DPOTrainer):
    """TRL's, on pairs that are token ids already."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset


def work(job: Job) -> None:
    spec, source = job.spec(DPOSpec), job.input("model")
    model, tokenizer = load_model(source)
    limits = limits_of(model, spec)
    encoder = Encoder(tokenizer)
    if spec.pairs:
        found, counts = _sampled(job, spec, spec.pairs, encoder, limits, model)
        pairs = found.pairs
        counts |= {"sampled": found.sampled, "pairs": len(pairs), **found.rewards}
    else:
        pairs, counts = _given(job, spec, encoder, limits)
    say_repeats("pairs", len(pairs), spec.steps * spec.batch_size)
    weights = {"sigmoid": 1.0, "sft": spec.sft_weight}
    used = {name: weight for name, weight in weights.items() if weight > 0}
    trainer = PairTrainer(
        model=model,
        args=DPOConfig(
            **arguments(job, spec),
            max_length=None,  # the pairs are within the limits
            beta=spec.beta,
            loss_type=list(used),
            loss_weights=list(used.values()),
            lr_scheduler_type="cosine",
            train_sampling_strategy="group_by_length",  # little padding
            remove_unused_columns=False,  # the length is for the sampler
        ),
        train_dataset=_dataset(pairs),
        processing_class=tokenizer,
    )
    fit(trainer, job, METRICS, beginning=counts)
    finish(job, model, source, spec.label, encoder.chat)


def _dataset(pairs: Sequence[Pair]) -> Dataset:
    columns = ("prompt_ids", "chosen_ids", "rejected_ids")
    ids = {name: [np.array(getattr(each, name), np.int32) for each in pairs] for name in columns}
    return Dataset.from_dict(ids | {"length": [each.length for each in pairs]})


def _given(job: Job, spec: DPOSpec, encoder: Encoder, limits: Limits) -> tuple[list[Pair], dict[str, float]]:
    """The rows as pairs."""
    kind_of(job, *spec.row_kinds())

    def encode(row: Row) -> Pair:
        (prompt, chosen), (other, rejected) = (encoder.completion(row, name) for name in ("chosen", "rejected"))
        common = min(len(prompt), len(other))  # a template may render the prompt's end otherwise before some answers
        parts = (prompt[:common], prompt[common:] + chosen, other[common:] + rejected)
        return Pair(*(np.array(part, np.int32) for part in parts))  # type: ignore[arg-type]

    def tokens(pair: Pair) -> tuple[int, int]:
        return len(pair.prompt_ids), max(len(pair.chosen_ids), len(pair.rejected_ids))

    chosen = choose(job, spec.seed, limits, encode, tokens, spec.steps * spec.batch_size)
    return chosen.rows, chosen.counts()


def _sampled(
    job: Job, spec: DPOSpec, how: PairsSpec, encoder: Encoder, limits: Limits, model: Any
) -> tuple[Pairs, dict[str, float]]:
    """The model's own pairs: from work/pairs when a killed engine has left them there whole."""
    asked = rows_to_ask(job, spec, how, encoder, limits)
    folder = job.work / "pairs"
    if folder.exists():
        try:
            return Pairs.load(folder), asked.counts()
        except ArtifactError as error:
            print(f"{error} The model is sampled again", flush=True)
            shutil.rmtree(folder)
    found = make_pairs(job, spec, how, encoder, limits, asked.rows, model)
    found.save(folder)
    print(f"{len(found.pairs)} pairs; of the other {found.no_pair} prompts no completion is better", flush=True)
    return found, asked.counts()


if __name__ == "__main__":
    main(work)
