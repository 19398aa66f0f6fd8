"""Direct preference optimization with TRL, on rows of kind preference or on pairs sampled from the model.

With `pairs`, rank 0 first samples completions of the rows' prompts with vLLM, and rewards score them (the pairs are
saved in work/pairs). Then vLLM is closed, and TRL trains on every rank.
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset
from trl import DPOConfig

from baton.tasks.core.job import Job, StageError
from baton.tasks.core.manifest import ArtifactError
from baton.tasks.posttrain import process
from baton.tasks.posttrain.adapter import base_of
from baton.tasks.posttrain.methods.dpo.pairs import FILE, Pair, Pairs
from baton.tasks.posttrain.methods.dpo.sampling import choose_prompts, make_pairs
from baton.tasks.posttrain.methods.dpo.spec import DPOSpec, PairsSpec
from baton.tasks.posttrain.rows import kind_of
from baton.tasks.posttrain.score import reserved
from baton.tasks.posttrain.spec import TRAINING, Prompt
from baton.tasks.posttrain.trainer import Setup, prepare
from baton.tasks.posttrain.trl_hooks.dpo import PairTrainer
from baton.tasks.posttrain.trl_hooks.shared_prompts import share_prompts

PAIRS = "pairs"  # the pairs' folder in work/, and their name in torchrun's store
METRICS = TRAINING | {
    "rewards/margins": "margin",
    "rewards/accuracies": "preference_accuracy",
    "logps/chosen": "logp_chosen",
    "logps/rejected": "logp_rejected",
}


def train(job: Job) -> None:
    setup = prepare(job, DPOSpec)
    spec = setup.spec
    if spec.pairs:
        sampled, counts = _sampled(setup, spec.pairs)
        pairs = sampled.pairs
        counts |= {"sampled": sampled.sampled, "pairs": len(pairs), **sampled.rewards}
    else:
        chosen = setup.choose(kind_of(job, *spec.row_kinds()), spec.steps * spec.batch_size)
        pairs, counts = chosen.rows, chosen.counts()
    setup.note(f"{len(pairs)} pairs", spec.steps, spec.batch_size, len(pairs))
    losses = {"sigmoid": 1.0} | ({"sft": spec.sft_weight} if spec.sft_weight > 0 else {})
    trainer = PairTrainer(
        **setup.model_arguments(),
        args=DPOConfig(
            **setup.arguments(),
            max_length=None,  # the pairs are within the limits
            beta=spec.beta,
            loss_type=list(losses),
            loss_weights=list(losses.values()),
            lr_scheduler_type="cosine",
            train_sampling_strategy="group_by_length",  # saves padding
            remove_unused_columns=False,  # the sampler needs the length
        ),
        train_dataset=_dataset(pairs),
    )
    share_prompts(base_of(trainer.model), trainer.ref_model)
    setup.fit(trainer, METRICS, initial=counts)
    setup.finish(trainer)


def _dataset(pairs: Sequence[Pair]) -> Dataset:
    columns = ("prompt_ids", "chosen_ids", "rejected_ids")
    ids = {name: [np.array(getattr(pair, name), np.int32) for pair in pairs] for name in columns}
    return Dataset.from_dict(ids | {"length": [pair.length for pair in pairs]})


def _sampled(setup: Setup[DPOSpec], sampling: PairsSpec) -> tuple[Pairs, dict[str, float]]:
    """Return pairs sampled from the model, or complete ones that a killed engine left in work/pairs. Rank 0 samples;
    the others wait for the folder or, on nodes that do not share it, for its file in torchrun's store, since there is
    no process group before vLLM is closed."""
    job = setup.job
    if taken := reserved((reward.label for reward in sampling.rewards), METRICS):
        raise StageError(f"reward {taken}: training has a metric of this name; set another `name`")
    prompts = choose_prompts(setup, sampling)
    folder = job.work / PAIRS
    if process.is_elsewhere(job):
        return Pairs.parse(process.handed_out(PAIRS)), prompts.counts()
    pairs = _made(setup, sampling, prompts.rows, folder)
    if process.is_first() and process.lacks_shared_folder(job):
        process.hand_out(PAIRS, (folder / FILE).read_text())
    return pairs, prompts.counts()


def _made(setup: Setup[DPOSpec], sampling: PairsSpec, rows: Sequence[Prompt], folder: Path) -> Pairs:
    while folder.exists() or not process.is_first():
        try:
            return Pairs.load(folder)
        except ArtifactError as error:
            if process.is_first():
                print(f"{error} Sampling the model again", flush=True)
                shutil.rmtree(folder)
            else:
                time.sleep(1)
    with process.alone():
        pairs = make_pairs(setup, sampling, rows)
    pairs.save(folder)
    print(f"{len(pairs.pairs)} pairs; none of the other {pairs.no_pair} prompts has a better completion", flush=True)
    return pairs
