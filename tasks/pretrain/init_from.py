"""Initialize a run from an existing model or run instead of random weights.

    start.0     the weights of another model, with new optimizer state
    resume.0    the weights and AdamW state of another run, which this run continues with its own schedule, steps and
                data

A restarted run continues from its own checkpoints and uses neither.
"""

import json
import shutil
from pathlib import Path

from baton.tasks.core.job import Job, StageError
from baton.tasks.core.manifest import read_manifest
from baton.tasks.models.hf_files import GENERATION, HUGGINGFACE
from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.pretrain.checkpoint import TrainingState, continue_run, load_chunks
from baton.tasks.pretrain.spec import PretrainSpec

RESUME = "resume.0"


class InitialWeights:
    """The weights that a run starts from. Raises StageError if they don't match the run's model or, when continuing a
    run, its tokenizer and precision."""

    def __init__(self, job: Job, spec: PretrainSpec, vocab_size: int, tokenizer_digest: str) -> None:
        sources = [*job.names("start"), *job.names("resume")]
        if len(sources) > 1:
            raise StageError(f"a run starts from one model, got {len(sources)}: {', '.join(sources)}; give only one")
        self.continues = RESUME in sources
        self.folder: Path | None = job.input(sources[0]) if sources else None
        if self.folder is None:
            return
        about = json.loads((self.folder / "model.json").read_text())
        _check_model(spec.model, ModelSpec.model_validate(about["model"]), vocab_size, about["vocab_size"])
        if self.continues:
            _check_run(spec, about["precision"], tokenizer_digest, read_manifest(self.folder).facts["tokenizer_digest"])

    def copy_generation_config(self, output: Path) -> None:
        """Copy the generation config of the initial model, to be exported with the trained one."""
        places = (self.folder / HUGGINGFACE / GENERATION, self.folder / GENERATION) if self.folder else ()
        for place in places:
            if place.is_file():
                shutil.copyfile(place, output / GENERATION)
                return

    def load(self, state: TrainingState) -> None:
        """Load this rank's part of the model. Collective; the files must have been verified by all ranks."""
        if self.folder is None:
            return
        if self.continues:
            continue_run(state, self.folder / "checkpoint")
        else:
            load_chunks(state.chunks, self.folder / "checkpoint")
            state.optimizer.reload_model_params()  # copies the weights to the optimizer's fp32 copies


def _check_model(model: ModelSpec, initial: ModelSpec, vocab_size: int, initial_vocab_size: int) -> None:
    trained = model.model_copy(update={"vocab_size": vocab_size})
    unlike = trained.unlike(initial.model_copy(update={"vocab_size": initial_vocab_size}))
    differences = [f"{name} is {own}, but {given} in the weights" for name, (own, given) in unlike.items()]
    if differences:
        raise StageError(f"pretrain.model does not match the model to start from: {'; '.join(differences)}")


def _check_run(spec: PretrainSpec, precision: str, tokenizer_digest: str, initial_tokenizer_digest: str) -> None:
    if tokenizer_digest != initial_tokenizer_digest:
        raise StageError(
            f"the data was tokenized with {tokenizer_digest[:12]}, but the checkpoint was trained with "
            f"{initial_tokenizer_digest[:12]}: tokenize the data with the latter, or train from scratch"
        )
    if spec.precision != precision:
        raise StageError(
            f"pretrain.precision: {spec.precision}: the checkpoint to continue and its optimizer state are in "
            f"{precision}; set precision: {precision}"
        )
