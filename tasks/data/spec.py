"""The specs of the data stages: corpus, tokenizer, tokenized shards."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from baton.infra.storage.address import File, digest_of, fetch, files_in, find, selected, state_of
from baton.infra.storage.buckets import StorageError, is_bucket
from baton.tasks.core.spec import ByBaton, NotSeen, PathText, Problem, Spec, StageSpec, identity_if_set, not_identity
from baton.tasks.data.curate_spec import CurateStep, order_problems
from baton.tasks.data.source_spec import AnySource, HuggingFaceSource, OnDisk, Records, StdlibSource, expanded, is_path
from baton.tasks.models.tokenizer_files import FILES, TEMPLATES, template_problem, vocabulary
from baton.tasks.user_code.functions import same_names

SPECIAL_TOKENS = ("<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>")
# Training a tokenizer took 2.8 GB for 1 GB of random words, 2.8 million distinct ones; for 1, 0.5, 0.13 GB of code and
# documentation 1.5, 1.2 and 0.7 GB. The number of distinct words grows as a power of the size (Heaps' law)
PROCESS_BYTES = 0.3e9
WORDS_BYTES, WORDS_POWER = 2.5e9, 0.6  # for 1 GB of text
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)  # every byte, so that any text can be encoded

Source = Annotated[AnySource, Field(discriminator="kind")]
SourceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
MOST_SOURCES = 100  # each is a data set of Megatron's, whose index building slows down with more than 200


class PartitionsSpec(Spec):
    """The division of a corpus into parts, which several processes read at the same time."""

    size_mb: float = Field(
        256.0,
        ge=0.001,
        le=100_000,
        description="MB of the source's files in a partition, about: files are combined up to it, and plain JSONL and "
        "Parquet files above it are cut. Smaller ones keep more cores busy and lose less when a run is killed",
    )
    concurrency: int | None = not_identity(
        None,
        "number of partitions processed at the same time, each on one core; null: as many as there are cores",
        ge=1,
        le=1024,
    )

    machines: int = not_identity(
        1,
        "machines that share the work: the nodes of a placement, or pods on a Flyte cluster, where each "
        "reads and curates its share; one elsewhere",
        ge=1,
        le=4096,
    )

    def target(self) -> int:
        """The size of a partition in bytes."""
        return int(self.size_mb * 1e6)


class CorpusSpec(StageSpec):
    """Documents from one source or several, without exact duplicates, split by content."""

    nodes_field: ClassVar[str] = "partitions.machines"

    source: Source = Field(
        StdlibSource(), description="where the documents come from; `kind` selects one of eight types"
    )
    sources: dict[SourceName, Source] = identity_if_set(
        {},
        "several sources by name, instead of `source`; each has the fields of its kind. They are read in "
        "the order of their names: if a text is in several, the first counts",
        max_length=MOST_SOURCES,
    )
    curate: list[CurateStep] = identity_if_set(
        [],
        "steps that drop documents or mask personal data in them, in this order; before exact duplicates are dropped",
        max_length=100,
    )
    partitions: PartitionsSpec = identity_if_set(
        PartitionsSpec(),
        "how the work is divided; the size determines where a corpus' files end and how the lines of a cut JSONL "
        "file are named, never which documents the corpus has",
    )
    held_out: float = Field(
        0.05, gt=0, lt=0.5, description="fraction of documents held out for evaluation, chosen by content hash"
    )
    state: ByBaton[str | None] = Field(
        None, description="state of the source at the start of the run; filled in by Baton"
    )

    @model_serializer(mode="wrap")
    def _serialized(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit a default `source` next to `sources`, so that a parsed spec has only fields that were set."""
        values: dict[str, Any] = fields(self)
        if self.sources and "source" not in self.model_fields_set:
            values.pop("source", None)
        return values

    def by_name(self) -> dict[str | None, Source]:
        """The sources in the order in which they are read; a single one has no name."""
        return dict(sorted(self.sources.items())) if self.sources else {None: self.source}

    def by_path(self) -> dict[str, Source]:
        """The sources by their path in the spec: "source", or "sources.web"."""
        return {f"sources.{name}" if name else "source": source for name, source in self.by_name().items()}

    def problems(self) -> list[Problem]:
        problems = []
        if self.sources and "source" in self.model_fields_set:
            allowed = f"only one of source and sources; move it into sources, beside {', '.join(self.sources)}"
            problems.append(Problem("source", self.source.kind, allowed))
        for name in ("weight", "epochs"):
            if (value := getattr(self.source, name)) is not None:
                allowed = "only for sources with a name, under `sources`; a single source is all of the corpus"
                problems.append(Problem(f"source.{name}", value, allowed))
        unweighted = [name for name, source in self.sources.items() if source.weight is None]
        if 0 < len(unweighted) < len(self.sources):
            allowed = "a weight, as the other sources have, or none for all (then by size)"
            problems += [Problem(f"sources.{name}.weight", None, allowed) for name in unweighted]
        for number, step in enumerate(self.curate):
            problems += [problem.under(f"curate.{number}") for problem in step.problems()]
        problems += [problem.under("curate") for problem in order_problems(self.curate)]
        return problems

    def missing(self) -> list[Problem]:
        """The problems with the sources on this machine, by a cheap check."""
        problems = [problem.under(path) for path, source in self.by_path().items() for problem in _missing(source)]
        for number, step in enumerate(self.curate):
            problems += [problem.under(f"curate.{number}") for problem in step.missing()]
        functions = {f"curate.{number}.function": step.function for number, step in enumerate(self.curate)}
        functions |= {f"{path}.function": getattr(source, "function", None) for path, source in self.by_path().items()}
        return [*problems, *same_names({path: function for path, function in functions.items() if function})]

    def unread(self) -> list[str]:
        """A line for each source that has files which are not read. Raises StorageError."""
        return [line for source in self.by_name().values() if isinstance(source, OnDisk) and (line := source.unread())]

    def pinned(self, *, ask_hub: bool = False) -> "CorpusSpec":
        """This spec with the sources' current state: the names, sizes and times of their files, or the interpreter's
        version. So changed files give a new corpus instead of a stale cache hit. With `ask_hub`, a hub
        dataset's state is its newest commit. Raises UserError."""
        states = {name: _state(source, ask_hub) for name, source in self.by_name().items()}
        state = states[None] if None in states else "; ".join(f"{name}: {state}" for name, state in states.items())
        return super().pinned().model_copy(update={"state": state})


class ShareSpec(StageSpec):
    """The partitions of a corpus that one of several pods works on."""

    number: int = Field(0, ge=0, description="which share, from 0")
    machines: int = Field(1, ge=1, description="number of shares")


class ReadShareSpec(ShareSpec):
    """The partitions of a corpus that one of several pods reads."""

    corpus: CorpusSpec = Field(description="the corpus")


class TokenizerSpec(StageSpec):
    """A byte-level BPE trained on the corpus, or an existing tokenizer."""

    vocab_size: int | None = Field(
        None,
        ge=SMALLEST_VOCABULARY,
        le=1_000_000,
        description="size of the vocabulary to train, special tokens included",
    )
    existing: PathText | None = Field(
        None,
        min_length=1,
        description="use an existing Hugging Face tokenizer instead: its folder, address, or hub name",
    )
    chat_template: str | None = Field(
        None, min_length=1, description="name of the existing tokenizer's chat template to use, the only one then"
    )
    pattern: Literal["llama3", "lines"] = Field(
        "llama3",
        description="where text is cut before merging (training only). llama3: the pattern of Llama 3 and GPT-4, which "
        "gigatoken encodes at 40 times the speed. lines: line ends and indentations are separate tokens, so a prompt "
        "may end in an indentation",
    )
    min_frequency: int = Field(2, ge=1, description="number of occurrences a pair needs to be merged (training only)")
    sample_mb: float = identity_if_set(
        512.0, "MB of text to train on, about: a sample by content hash; all text if there is less", gt=0, le=100_000
    )
    state: ByBaton[str | None] = Field(
        None, description="state of an existing folder at the start of the run; filled in by Baton"
    )

    def memory(self) -> int:
        """Estimated bytes of memory for training on text with many distinct words; 0 for an existing tokenizer."""
        if self.vocab_size is None:
            return 0
        return int(PROCESS_BYTES + WORDS_BYTES * (self.sample_mb / 1000) ** WORDS_POWER)

    def memory_text(self) -> str:
        text = f"with many distinct words in {self.sample_mb:g} MB of text (sample_mb)"
        return f"{memory / 1e9:.2g} GB {text}" if (memory := self.memory()) else ""

    def existing_models(self) -> dict[str, str]:
        return {"existing": self.existing} if self.existing else {}

    def folder(self) -> Path | None:
        """The existing tokenizer's local folder, downloaded first if it is at an address; None for a hub name. Raises
        StorageError."""
        if self.existing is None:
            return None
        if is_bucket(self.existing):
            return fetch(self.existing, FILES)
        return expanded(self.existing) if is_path(self.existing) else None

    def local_files(self) -> list[File]:
        """The files of this machine that the spec refers to."""
        if self.existing is None or is_bucket(self.existing) or not is_path(self.existing):
            return []
        return selected(files_in(expanded(self.existing), TEMPLATES), FILES)

    def pinned(self) -> "TokenizerSpec":
        """This spec with the existing tokenizer's current state, so that changed files are not a cache hit. Raises
        StorageError."""
        if self.existing is None or digest_of(self.existing):
            return self
        if is_bucket(self.existing):
            state = state_of(selected(find(self.existing), FILES))
        elif folder := self.folder():
            state = state_of(files_in(folder, TEMPLATES))
        else:
            return self
        return self.model_copy(update={"state": state})

    def size(self) -> int | None:
        """The size of the vocabulary, if known before the stage has run."""
        if self.existing is None:
            return self.vocab_size
        try:
            folder = self.folder()
        except StorageError:
            return None  # missing() reports why
        ids = vocabulary(folder) if folder else None
        return 1 + max(ids.values()) if ids else None

    def problems(self) -> list[Problem]:
        if (self.vocab_size is None) == (self.existing is None):
            fix = "give either vocab_size (to train one) or existing (a folder or hub name)"
            return [Problem("vocab_size", self.vocab_size, fix)]
        if self.chat_template and self.existing is None:
            return [Problem("chat_template", self.chat_template, "only with `existing`; a trained one has ChatML")]
        if self.existing:
            return self.unused(("pattern", "min_frequency", "sample_mb"), "unset with `existing`, which is not trained")
        return []

    def missing(self) -> list[Problem]:
        """The problems with an existing tokenizer's folder."""
        try:
            folder = self.folder()
        except StorageError as error:
            return [NotSeen("existing", self.existing, f"the address of a tokenizer's folder: {error.message}")]
        if folder is None:
            return []
        if vocabulary(folder):
            return template_problem(folder, self.chat_template)
        where = self.existing if is_bucket(self.existing or "") else folder
        allowed = f"a folder with tokenizer.json, as save_pretrained writes; in {where} it is missing or damaged"
        return [Problem("existing", self.existing, allowed)]


class ShardsSpec(StageSpec):
    """Megatron `.bin/.idx` of both splits."""

    nodes_field: ClassVar[str] = "machines"

    concurrency: int | None = not_identity(
        None,
        "number of parts tokenized at the same time, each on one core; null: as many as there are cores",
        ge=1,
        le=1024,
    )
    machines: int = not_identity(
        1,
        "machines that share the work: the nodes of a placement, or pods on a Flyte cluster, where each "
        "tokenizes its share; one elsewhere",
        ge=1,
        le=4096,
    )


class GatherSpec(StageSpec):
    """Several corpora merged into one."""

    train: bool = Field(True, description="include the train split, not only the held-out one")


def _missing(source: AnySource) -> list[Problem]:
    if not isinstance(source, Records):
        return source.missing()
    from baton.tasks.data.first_record import missing  # pyarrow: not on the path of --help

    return missing(source)


def _state(source: Source, ask_hub: bool) -> str:
    state = source.state()
    if ask_hub and not state and isinstance(source, HuggingFaceSource) and not is_bucket(source.name):
        return source.commit()
    return state
