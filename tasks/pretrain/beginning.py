"""What a run begins with, where that is not random weights.

    start.0     the weights of another model; AdamW begins anew
    resume.0    the weights of another run and AdamW's state: this run continues it, with its own
                schedule, steps and data

A run that is itself resumed goes on from its own checkpoints and needs neither.
"""

import json
from pathlib import Path
from typing import Any

from tasks.job import Job, StageError
from tasks.manifest import read_manifest
from tasks.pretrain.checkpoint import TrainingState, fill, take_over
from tasks.pretrain.model_spec import ModelSpec
from tasks.pretrain.spec import PretrainSpec

START, RESUME = "start.0", "resume.0"
# what a run may change of the model that it begins with: neither a weight nor what it computes depends on it
FREE: Any = {"max_positions": True, "init_std": True, "experts": {"aux_loss", "z_loss"}}


class Beginning:
    """The weights that a run begins with, checked: they are of its model, and what is continued was trained on
    its tokenizer's tokens, in its precision. Raises StageError."""

    def __init__(self, job: Job, spec: PretrainSpec, vocab_size: int, tokenizer_digest: str) -> None:
        given = [name for name in job.inputs if name.startswith(("start.", "resume."))]
        if len(given) > 1:
            raise StageError(f"a run begins with one model, and {', '.join(given)} are {len(given)}: give one of them")
        self.continues = RESUME in given
        self.folder: Path | None = job.input(given[0]) if given else None
        if self.folder is None:
            return
        told = json.loads((self.folder / "model.json").read_text())
        _check_model(spec.model, ModelSpec.model_validate(told["model"]), vocab_size, told["vocab_size"])
        if self.continues:
            _check_run(spec, told["precision"], tokenizer_digest, read_manifest(self.folder).facts["tokenizer_digest"])

    def enter(self, state: TrainingState) -> None:
        """Fill this rank's part of the model; every rank calls it, after a barrier behind the check of the files."""
        if self.folder is None:
            return
        if self.continues:
            take_over(state, self.folder / "checkpoint")
        else:
            fill(state.chunks, self.folder / "checkpoint")
            state.optimizer.reload_model_params()  # into its fp32 copies


def _check_model(model: ModelSpec, begun: ModelSpec, vocab_size: int, begun_vocab_size: int) -> None:
    ours = model.model_copy(update={"vocab_size": vocab_size}).model_dump(exclude=FREE)
    theirs = begun.model_copy(update={"vocab_size": begun_vocab_size}).model_dump(exclude=FREE)
    words = [
        f"{name} is {ours[name]}, and {theirs[name]} in the weights" for name in ours if ours[name] != theirs[name]
    ]
    if words:
        raise StageError(f"pretrain.model is not the model that the run begins with: {'; '.join(words)}")


def _check_run(spec: PretrainSpec, precision: str, tokenizer_digest: str, begun_tokenizer_digest: str) -> None:
    if tokenizer_digest != begun_tokenizer_digest:
        raise StageError(
            f"the data is in the tokens of tokenizer {tokenizer_digest[:12]}, and the checkpoint learned those of "
            f"{begun_tokenizer_digest[:12]}: tokenize the data with that one, or train from the beginning"
        )
    if spec.precision != precision:
        raise StageError(
            f"pretrain.precision: {spec.precision}: the checkpoint to continue is of a run in {precision}, and the "
            f"optimizer's state belongs to that; set precision: {precision}"
        )
