"""The artifacts that pretraining produces and starts from."""

from baton.infra.text import count, number
from baton.tasks.artifacts import Artifact


class MegatronCheckpoint(Artifact):
    """Megatron's dist_checkpointing directory, with `model.json` (the model's spec) beside it."""

    kind = "megatron_checkpoint"
    order = 70
    family = "model"
    page = "baton.tasks.pretrain.page:checkpoint"
    step: int  # number of steps of its run
    tokens_seen: int  # in its run and in the runs that it continues
    parameters: int
    vocab_size: int
    sequence_length: int
    precision: str
    layout: dict[str, int]
    validation_loss: float
    tokenizer_digest: str

    def detail(self) -> str:
        return f"step {number(self.step)}"


class MegatronWeights(Artifact):
    """A dist_checkpoint of weights only, imported from Hugging Face: `checkpoint/`, `huggingface/`, `model.json`."""

    kind = "megatron_weights"
    order = 80
    family = "model"
    architecture: str
    parameters: int
    vocab_size: int
    precision: str
    license: dict[str, str] = {}  # license of the imported model, see tasks/convert/base_license.py

    def detail(self) -> str:
        return f"{count(self.parameters)} weights"
