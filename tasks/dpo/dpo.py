"""Direct preference optimization with TRL, on rows of kind preference or on pairs sampled from the model.

    python -m tasks.dpo.dpo JOB_DIR        inputs: model (HFModel), rows (Rows)

With `pairs`, rank 0 first samples completions of the rows' prompts with vLLM, and rewards score them (the pairs are
saved in work/pairs). Then vLLM is closed, and TRL trains on every rank.
"""

import tasks.posttrain.one_gpu  # noqa: F401 - before torch looks for GPUs

# isort: split
import shutil
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from trl import DPOConfig

from tasks.dpo.pairs import Pair, Pairs
from tasks.dpo.sampling import choose_prompts, make_pairs
from tasks.dpo.spec import DPOSpec, PairsSpec
from tasks.job import Job, StageError, main
from tasks.manifest import ArtifactError
from tasks.posttrain import process
from tasks.posttrain.adapter import base_of, peft_config
from tasks.posttrain.adapter_files import source_of
from tasks.posttrain.encode import Encoder
from tasks.posttrain.rows import choose, kind_of, note_epochs
from tasks.posttrain.score import reserved
from tasks.posttrain.spec import Limits
from tasks.posttrain.trainer import arguments, finish, fit, limits_of, load_model, spec_of
from tasks.posttrain.trl_hooks.dpo import PairTrainer
from tasks.posttrain.trl_hooks.shared_prompts import share_prompts
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


def work(job: Job) -> None:
    spec, source = spec_of(job, DPOSpec), source_of(job)
    model, tokenizer = load_model(source, spec)
    limits = limits_of(model, spec)
    encoder = Encoder(tokenizer)
    if spec.pairs:
        sampled, counts = _sampled(job, spec, spec.pairs, encoder, limits, model)
        pairs = sampled.pairs
        counts |= {"sampled": sampled.sampled, "pairs": len(pairs), **sampled.rewards}
    else:
        pairs, counts = _of_rows(job, spec, encoder, limits)
    for text in encoder.notices():
        job.notice(text)
    note_epochs(job, "pairs", len(pairs), spec.steps * spec.batch_size / len(pairs))
    losses = {"sigmoid": 1.0} | ({"sft": spec.sft_weight} if spec.sft_weight > 0 else {})
    trainer = PairTrainer(
        model=model,
        args=DPOConfig(
            **arguments(job, spec, model),
            max_length=None,  # the pairs are within the limits
            beta=spec.beta,
            loss_type=list(losses),
            loss_weights=list(losses.values()),
            lr_scheduler_type="cosine",
            train_sampling_strategy="group_by_length",  # little padding
            remove_unused_columns=False,  # the sampler needs the length
        ),
        train_dataset=_dataset(pairs),
        processing_class=tokenizer,
        peft_config=peft_config(spec.adapter, model) if spec.adapter else None,
    )
    share_prompts(base_of(trainer.model), trainer.ref_model)
    fit(trainer, job, METRICS, initial=counts)
    finish(job, trainer, source, spec, encoder)


def _dataset(pairs: Sequence[Pair]) -> Dataset:
    columns = ("prompt_ids", "chosen_ids", "rejected_ids")
    ids = {name: [np.array(getattr(pair, name), np.int32) for pair in pairs] for name in columns}
    return Dataset.from_dict(ids | {"length": [pair.length for pair in pairs]})


def _of_rows(job: Job, spec: DPOSpec, encoder: Encoder, limits: Limits) -> tuple[list[Pair], dict[str, float]]:
    """Rows of kind preference as pairs."""
    kind_of(job, *spec.row_kinds())

    def encode(row: Row) -> Pair:
        (prompt, chosen), (other, rejected) = (encoder.completion(row, name) for name in ("chosen", "rejected"))
        common = min(len(prompt), len(other))  # a template may render the prompt's end differently before some answers
        parts = (prompt[:common], prompt[common:] + chosen, other[common:] + rejected)
        return Pair(*(np.array(part, np.int32) for part in parts))  # type: ignore[arg-type]

    def tokens(pair: Pair) -> tuple[int, int]:
        return len(pair.prompt_ids), max(len(pair.chosen_ids), len(pair.rejected_ids))

    chosen = choose(job, spec.seed, limits, encode, tokens, spec.steps * spec.batch_size)
    return chosen.rows, chosen.counts()


def _sampled(
    job: Job, spec: DPOSpec, how: PairsSpec, encoder: Encoder, limits: Limits, model: Any
) -> tuple[Pairs, dict[str, float]]:
    """Pairs sampled from the model, or those that a killed engine left complete in work/pairs. Rank 0 samples; the
    others wait for the folder, since there is no process group before vLLM is closed."""
    if taken := reserved((reward.label for reward in how.rewards), METRICS):
        raise StageError(f"reward {taken}: training has a metric of this name; set another `name`")
    prompts = choose_prompts(job, spec, how, encoder, limits)
    folder = job.work / "pairs"
    while folder.exists() or not process.is_first():
        try:
            return Pairs.load(folder), prompts.counts()
        except ArtifactError as error:
            if process.is_first():
                print(f"{error} Sampling the model again", flush=True)
                shutil.rmtree(folder)
            else:
                time.sleep(1)
    with process.alone():
        pairs = make_pairs(job, spec, how, encoder, limits, prompts.rows, model)
    pairs.save(folder)
    print(f"{len(pairs.pairs)} pairs; none of the other {pairs.no_pair} prompts has a better completion", flush=True)
    return pairs, prompts.counts()


if __name__ == "__main__":
    main(work)
