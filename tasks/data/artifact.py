"""The artifacts of the data stages."""

from collections.abc import Sequence
from typing import ClassVar

from baton.infra.text import count, number
from baton.tasks.artifacts import Artifact


class Corpus(Artifact):
    """Documents, exact duplicates dropped, split by content hash into train and held-out."""

    kind = "corpus"
    order = 10
    family = "data"
    page = "baton.tasks.data.page:corpus"
    held_out_files: ClassVar[Sequence[str]] = ("held_out-*.parquet",)
    partitions_file: ClassVar[str] = "record/partitions.json"  # those that it was made of, for the next increment
    documents: int
    held_out_documents: int
    bytes: int
    held_out_bytes: int
    duplicates: int
    empty: int
    invalid_utf8: int
    broken: int = 0  # files of which something was skipped
    broken_records: int = 0  # records that were skipped; without those behind a damage, which nobody can count
    curation: dict[str, dict[str, int]] = {}  # documents that reached each step, were dropped and changed
    sources: dict[str, dict[str, int]] = {}  # documents and bytes in each split of each named source
    edited: int = 0  # this field and the next three count changes since the previous corpora of an increment
    renamed: int = 0
    deleted: int = 0
    gone: int = 0  # documents of the known corpora that the source no longer has
    known_digest: str = ""  # for an increment, the key of the digests of the known corpora, oldest first

    def detail(self) -> str:
        return f"{number(self.documents)} documents"


class StoredPartitions(Artifact):
    """`partitions.json`: the keys of the partitions that one pod has read or tokenized for others; they are in
    storage."""

    kind = "partitions"
    order = 20
    partitions: int


class Tokenizer(Artifact):
    """A Hugging Face tokenizer directory."""

    kind = "tokenizer"
    order = 30
    family = "tokenizer"
    page = "baton.tasks.data.page:tokenizer"
    vocab_size: int
    eos_id: int
    pad_id: int

    def detail(self) -> str:
        return f"{number(self.vocab_size)} tokens"


class TokenizedCorpus(Artifact):
    """Megatron `.bin/.idx`: `train`, or `train-<source>` for each named source, and `held_out`; of large ones
    several."""

    kind = "tokenized_corpus"
    order = 40
    family = "data"
    page = "baton.tasks.data.page:tokenized_corpus"
    held_out_files: ClassVar[Sequence[str]] = ("held_out.*",)
    tokens: int
    held_out_tokens: int
    held_out_bytes: int
    vocab_size: int
    eos_id: int  # the token that ends each document
    tokenizer_digest: str
    sources: dict[str, int] = {}  # training tokens of each named source
    prefixes: dict[str, int] = {}  # by `.bin/.idx`, if a source has several: train-web-00000

    def detail(self) -> str:
        return f"{count(self.tokens)} tokens"
