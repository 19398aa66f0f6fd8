"""What the data stages make: a corpus of documents, a tokenizer, tokenized shards.

Nothing here says on what machine or with how many workers.
"""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tasks.data.source_spec import (
    FilesSource,
    HuggingFaceSource,
    JsonlSource,
    ParquetSource,
    StdlibSource,
    expanded,
    is_path,
    state_of,
)
from tasks.spec import PathText, Problem, StageSpec

SPECIAL_TOKENS = ("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>")
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)  # every byte, so that any text can be said

Source = Annotated[
    StdlibSource | FilesSource | JsonlSource | ParquetSource | HuggingFaceSource, Field(discriminator="kind")
]


class CorpusSpec(StageSpec):
    """Documents from one source, exact duplicates dropped, split by content."""

    source: Source = Field(StdlibSource(), description="where the documents come from; `kind` says which of the five")
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
        if ask_hub and not state and isinstance(self.source, HuggingFaceSource):
            state = self.source.commit()
        return self.model_copy(update={"state": state})


class TokenizerSpec(StageSpec):
    """A byte-level BPE trained on the corpus, or an existing tokenizer."""

    vocab_size: int | None = Field(
        None,
        ge=SMALLEST_VOCABULARY,
        le=1_000_000,
        description="entries of the vocabulary to train, the special tokens included",
    )
    existing: PathText | None = Field(
        None, min_length=1, description="instead of training: the folder or the hub name of a Hugging Face tokenizer"
    )
    min_frequency: int = Field(2, ge=1, description="how often a pair must occur to be merged (training only)")
    state: str | None = Field(
        None, description="what an existing folder looked like at the start; filled in by Baton, see `as_found`"
    )

    def as_found(self) -> "TokenizerSpec":
        """This spec with the existing tokenizer's present state, so that changed files are not a cache hit."""
        if self.existing is None or not is_path(self.existing):
            return self
        folder = expanded(self.existing)
        files = sorted(path for path in folder.iterdir() if path.is_file())
        return self.model_copy(update={"state": state_of(folder, files)})

    def size(self) -> int | None:
        """Entries of the vocabulary, where this is known before the stage has run."""
        if self.existing is None:
            return self.vocab_size
        content = _read_json(expanded(self.existing) / "tokenizer.json")
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
        """What an existing tokenizer's folder lacks on this machine."""
        if self.existing is None or not is_path(self.existing):
            return []
        path = expanded(self.existing) / "tokenizer.json"
        if _read_json(path):
            return []
        allowed = f"a folder with tokenizer.json, as save_pretrained writes; {path} is missing or damaged"
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
