"""What the data stages make: a corpus of documents, a tokenizer, tokenized shards.

Nothing here says on what machine or with how many workers.
"""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from infra.placement.address import File, bring, digest_of, files_in, find, selected, state_of
from infra.placement.storage import StorageError, is_bucket
from tasks.data.source_spec import (
    FilesSource,
    FunctionSource,
    HuggingFaceSource,
    JsonlSource,
    ParquetSource,
    StdlibSource,
    expanded,
    is_path,
)
from tasks.spec import NotSeen, PathText, Problem, StageSpec

SPECIAL_TOKENS = ("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>")
TOKENIZER_FILES = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)  # every byte, so that any text can be said

Source = Annotated[
    StdlibSource | FilesSource | JsonlSource | ParquetSource | HuggingFaceSource | FunctionSource,
    Field(discriminator="kind"),
]


class CorpusSpec(StageSpec):
    """Documents from one source, exact duplicates dropped, split by content."""

    source: Source = Field(StdlibSource(), description="where the documents come from; `kind` says which of the six")
    held_out: float = Field(
        0.05, gt=0, lt=0.5, description="share of the documents held out for evaluation, chosen by content hash"
    )
    state: str | None = Field(
        None, description="what the source looked like at the start; filled in by Baton, see `as_found`"
    )

    def missing(self) -> list[Problem]:
        """What the source lacks on this machine, looked up cheaply."""
        return [problem.under("source") for problem in self.source.missing()]

    def as_found(self, *, ask_hub: bool = False) -> "CorpusSpec":
        """This spec with the source's present state in it: its files' names, sizes and times, or the
        interpreter's version. With it, changed files make a new corpus instead of a stale cache hit. A dataset
        of the hub has its newest commit for that, when it is asked for. Raises Stopped."""
        state = self.source.state()
        if ask_hub and not state and isinstance(self.source, HuggingFaceSource) and not is_bucket(self.source.name):
            state = self.source.commit()
        return self.model_copy(update={"state": state, "source": self.source.as_found()})


class TokenizerSpec(StageSpec):
    """A byte-level BPE trained on the corpus, or an existing tokenizer."""

    vocab_size: int | None = Field(
        None,
        ge=SMALLEST_VOCABULARY,
        le=1_000_000,
        description="entries of the vocabulary to train, the special tokens included",
    )
    existing: PathText | None = Field(
        None,
        min_length=1,
        description="instead of training: the folder, its address, or the hub name of a Hugging Face tokenizer",
    )
    min_frequency: int = Field(2, ge=1, description="how often a pair must occur to be merged (training only)")
    state: str | None = Field(
        None, description="what an existing folder looked like at the start; filled in by Baton, see `as_found`"
    )

    def folder(self) -> Path | None:
        """The existing tokenizer's folder: on this machine, or brought there. None: it is the hub's. Raises
        StorageError."""
        if self.existing is None:
            return None
        if is_bucket(self.existing):
            return bring(self.existing, TOKENIZER_FILES)
        return expanded(self.existing) if is_path(self.existing) else None

    def local_files(self) -> list[File]:
        """Those of this machine that it names."""
        if self.existing is None or is_bucket(self.existing) or not is_path(self.existing):
            return []
        return selected(files_in(expanded(self.existing)), TOKENIZER_FILES)

    def as_found(self) -> "TokenizerSpec":
        """This spec with the existing tokenizer's present state, so that changed files are not a cache hit. Raises
        StorageError."""
        if self.existing is None or digest_of(self.existing):
            return self
        if is_bucket(self.existing):
            state = state_of(selected(find(self.existing), TOKENIZER_FILES))
        elif folder := self.folder():
            state = state_of(files_in(folder))
        else:
            return self
        return self.model_copy(update={"state": state})

    def size(self) -> int | None:
        """Entries of the vocabulary, where this is known before the stage has run."""
        if self.existing is None:
            return self.vocab_size
        try:
            folder = self.folder()
        except StorageError:
            return None  # missing() says why
        content = _read_json(folder / "tokenizer.json") if folder else None
        if not content:
            return None
        added = [token["id"] for token in content.get("added_tokens", [])]
        return int(1 + max([*_ids(content["model"]["vocab"]), *added]))

    def problems(self) -> list[Problem]:
        if (self.vocab_size is None) == (self.existing is None):
            way_out = "give either vocab_size (to train one) or existing (a folder or hub name)"
            return [Problem("vocab_size", self.vocab_size, way_out)]
        return []

    def missing(self) -> list[Problem]:
        """What an existing tokenizer's folder lacks."""
        try:
            folder = self.folder()
        except StorageError as error:
            return [NotSeen("existing", self.existing, f"the address of a tokenizer's folder: {error.message}")]
        if folder is None or _read_json(folder / "tokenizer.json"):
            return []
        allowed = f"a folder with tokenizer.json, as save_pretrained writes; {folder} has none, or it is damaged"
        return [Problem("existing", self.existing, allowed)]


class ShardsSpec(StageSpec):
    """Megatron `.bin/.idx` of both splits; it has no choices (yet)."""


class GatherSpec(StageSpec):
    """One corpus of several."""

    train: bool = Field(True, description="the documents to train on too, not the held-out ones alone")


def _ids(vocabulary: dict[str, int] | list[object]) -> list[int]:
    """The ids in tokenizer.json's vocabulary: a map for BPE, a list for Unigram."""
    return list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))


def _read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when it is not there or not whole."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):  # the last of a thousand levels of nesting
        return None
    return content if isinstance(content, dict) else None
