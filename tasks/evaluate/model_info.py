"""Read a model's length limit, tokenizer and chat template without loading its weights."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from baton.infra.progress import say
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import read_manifest
from baton.tasks.models.hf_files import model_in
from baton.tasks.models.tokenizers import beginning, load, plain
from baton.tasks.posttrain.encode import RowEncoder


@dataclass(frozen=True)
class ModelInfo:
    """A Hugging Face directory with a fast tokenizer."""

    path: Path
    label: str
    positions: int  # limit of prompt plus completion, in tokens
    end_of_text: int  # token id, before and after every document
    tokenizer: Tokenizer
    base: Path | None = None  # the base's folder, if the model is an adapter

    def tokens(self, text: str) -> list[int]:
        """Return the tokens of a corpus's text, in which "<|endoftext|>" is ordinary text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    @property
    def start(self) -> list[int]:
        """The tokens before a document, as in training: BOS, if the tokenizer adds it, or else the end of the document
        before it."""
        return beginning(self.tokenizer) or [self.end_of_text]

    @cached_property
    def encoder(self) -> RowEncoder:
        """The encoder, which tokenizes rows as post-training does. A model without a chat template gets the template
        that post-training would set, so that base and tuned models are compared on the same prompts."""
        encoder = RowEncoder(load(self.path))
        if not encoder.tokenizer.chat_template:
            say(f"{self.label} has no chat template: conversations are rendered with ChatML")
        return encoder


def read_model_info(path: Path, base: Path | None = None) -> ModelInfo:
    """Read a model's facts. `base`: the folder of an adapter's base. Raises ArtifactError if the directory is not a
    complete artifact."""
    facts = read_manifest(path).facts
    end = model_in(path).end_of_text
    if end is None:
        raise StageError(f"{path}: neither its config nor its tokenizer says which token ends a text; set eos_token_id")
    return ModelInfo(
        path=path,
        label=str(facts["label"]),
        positions=int(facts["max_positions"]),
        end_of_text=end,
        tokenizer=plain(path),
        base=base,
    )
