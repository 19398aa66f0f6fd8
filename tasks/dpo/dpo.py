"""DPO with TRL, on pairs that the model makes itself.

    python -m tasks.dpo.dpo JOB_DIR        inputs: model (HFModel), corpus (Corpus)

Two parts in one process: vLLM samples the model once on training prompts (work/pairs keeps the pairs, sealed);
then vLLM is closed and TRL trains.
"""

import gc
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from tasks.dpo.pairs import Pairs, make_pairs
from tasks.dpo.spec import DPOSpec
from tasks.job import Job, StageError, main
from tasks.manifest import ArtifactError
from tasks.posttrain.examples import check_positions, examples
from tasks.posttrain.trainer import arguments, finish, fit, load_model
from tasks.serve.engine import open_engine, sample

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
    check_positions(model, spec)
    found = _pairs(job, spec, source, tokenizer)
    if not found.pairs:
        raise StageError(
            f"the model passes the checks on all {found.sampled} prompts: nothing to prefer; leave DPO out"
        )
    weights = {"sigmoid": 1.0, "sft": spec.sft_weight}
    used = {name: weight for name, weight in weights.items() if weight > 0}
    trainer = PairTrainer(
        model=model,
        args=DPOConfig(
            **arguments(job, spec),
            max_length=None,  # the examples are within the limits
            beta=spec.beta,
            loss_type=list(used),
            loss_weights=list(used.values()),
            lr_scheduler_type="cosine",
            train_sampling_strategy="group_by_length",  # little padding
            remove_unused_columns=False,  # the length is for the sampler
        ),
        train_dataset=Dataset.from_list([asdict(pair) | {"length": pair.length} for pair in found.pairs]),
        processing_class=tokenizer,
    )
    counts = {"sampled": found.sampled, "pairs": len(found.pairs), "passed": found.passed}
    fit(trainer, job, METRICS, beginning=counts)
    finish(job, model, source, "dpo")


def _pairs(job: Job, spec: DPOSpec, source: Path, tokenizer: Any) -> Pairs:
    """From work/pairs when a killed engine has left them there whole."""
    folder = job.work / "pairs"
    if folder.exists():
        try:
            return Pairs.load(folder)
        except ArtifactError as error:
            print(f"{error} The model is sampled again", flush=True)
            shutil.rmtree(folder)
    asked = examples(job.input("corpus"), tokenizer, spec, spec.prompts)
    job.progress(0, len(asked), "samples")
    length = spec.max_prompt_tokens + spec.max_new_tokens
    llm = open_engine(source, max_model_len=length, seed=spec.seed)
    answers = sample(llm, [one.prompt_ids for one in asked], temperature=1.0, max_tokens=spec.max_new_tokens)
    found = make_pairs(asked, answers)
    found.save(folder)
    del llm
    gc.collect()  # the engine's memory is wanted for training
    return found


if __name__ == "__main__":
    main(work)
