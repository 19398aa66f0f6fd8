"""Spec of a set of rows: their source, their columns, and which of them are held out.

    RowsSpec.model_validate({"path": "data/chat/*.jsonl"})
    RowsSpec.model_validate({"huggingface": {"name": "openai/gsm8k"}, "columns": {"prompt": "question"}})
    RowsSpec.model_validate({"function": "sums.py:rows", "held_out": 0.1})

    spec.problems()         problems across fields
    spec.missing()          problems with the source on this machine, by files' names and sizes
    spec = spec.pinned()    adds the source's current state, so that changed files are not a cache hit

See formats.py for the supported formats.
"""

import glob
from typing import Literal

from pydantic import Field

from baton.infra.placement.config import VariableName
from baton.infra.storage.address import File, digest_of
from baton.infra.storage.buckets import is_bucket
from baton.tasks.core.json_data import JsonObject
from baton.tasks.core.spec import ByBaton, PathText, Problem, Spec, StageSpec, not_identity
from baton.tasks.data.source_spec import FilesSource, HuggingFaceSource, expanded
from baton.tasks.user_code.functions import Function

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".parquet")
SOURCES = ("path", "huggingface", "function")
MOST_SEEN = 64  # rows that are read first, and whose columns decide the format

READERS = {".arrow": "huggingface: reads folders that save_to_disk wrote", ".csv": "write them as JSONL or Parquet"}

Kind = Literal["messages", "prompt_completion", "preference", "prompt", "text"]
FormatName = Literal[Kind, "sharegpt", "sharegpt_preference", "openai_preference", "alpaca", "verl"]


class RowFiles(FilesSource):
    """Files of rows, listed like a corpus' files. The .json files of a folder are often metadata, so they are
    read only if named or matched by a glob."""

    suffixes = SUFFIXES  # type: ignore[assignment]  # a ClassVar, narrowed in the base class
    readers = READERS

    def files(self) -> list[File]:
        files = super().files()
        return files if self._reads_json(files) else [file for file in files if not file.name.endswith(".json")]

    def unread(self) -> str:
        """A line about unread files, as for a corpus, and about .json files that count as metadata."""
        files, others = super().files(), super().unread()
        metadata = 0 if self._reads_json(files) else sum(file.name.endswith(".json") for file in files)
        left = f"{self.path}: {metadata:,} .json not read: in a folder mostly metadata; use a glob to read them"
        return "; ".join(filter(None, [others, left if metadata else ""]))

    def _reads_json(self, files: list[File]) -> bool:
        named = glob.has_magic(self.path) or self.path.rstrip("/").rpartition("/")[2] in {file.name for file in files}
        return named or digest_of(self.path) is not None  # an uploaded archive contains only chosen files


class HuggingFaceRows(Spec):
    """A Hugging Face dataset by its Hub name, or a folder that `save_to_disk` wrote."""

    name: PathText = Field(min_length=1, description="Hub name (`owner/name`) or folder")
    config: str | None = Field(None, description="the dataset's configuration, if it has several")
    split: str = Field("train", min_length=1, description="the dataset's split to read")
    streaming: bool = not_identity(True, "stream over the network instead of downloading first")

    def source(self) -> HuggingFaceSource:
        return HuggingFaceSource(name=self.name, config=self.config, split=self.split, streaming=self.streaming)

    def local_files(self) -> list[File]:
        """Local files that the dataset refers to."""
        return self.source().local_files()


class RowsSpec(StageSpec):
    """A set of rows from one source: each validated, exact duplicates dropped, split by content."""

    path: PathText | None = Field(
        None,
        min_length=1,
        description=f"a file, a folder (searched recursively) or a glob, of {', '.join(SUFFIXES)}; a folder's .json "
        "files are skipped",
    )
    huggingface: HuggingFaceRows | None = Field(None, description="a dataset of the Hub, or a folder of one")
    function: Function | None = Field(
        None,
        description="`file.py:function` or `package.module:function`, which yields the rows as dicts; parameters "
        "`seed` and `limit`, if it has them, get this spec's values",
    )
    arguments: JsonObject = Field(
        default_factory=dict, description="further arguments of the function, by name; no secrets: see environment"
    )
    environment: list[VariableName] = not_identity(
        [],
        "environment variables that the function reads, such as an API key; they must be set where it runs. "
        "Not part of the identity: values that change the rows belong in `arguments`",
        max_length=100,
    )
    documents: bool = Field(
        False,
        description="the function makes rows from the corpus's documents: its parameter `documents` is an iterable "
        "of {text, source, id}; rows of held-out documents are held out, regardless of `held_out`",
    )
    columns: dict[str, str | None] = Field(
        default_factory=dict,
        description="columns to rename, new name: old name, such as {prompt: question}; one column may get several "
        "names: {completion: answer, answer: answer}; to leave out, name: null, such as {image: null}",
    )
    format: FormatName | None = Field(
        None, description="format of the rows, if their columns match several; null: detected from the columns"
    )
    held_out: float = Field(
        0.05,
        ge=0,
        le=1,
        description="fraction of the rows held out for evaluation, chosen by a hash of the prompt: rows with the same "
        "prompt stay together, and adding or removing others changes nothing",
    )
    limit: int | None = Field(
        None, ge=1, description="maximum number of rows to read, the first ones; with `documents`, for each split"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of the choice of held-out rows, and of the function")
    max_row_mb: float = Field(
        2.0,
        gt=0,
        le=1000,
        description="largest row as JSON, MB; a larger one is faulty. 2 MB are about 500,000 tokens of English",
    )
    faulty: Literal["refuse", "drop"] = Field(
        "refuse", description="refuse: a faulty row fails the stage; drop: it is dropped, counted and reported"
    )
    state: ByBaton[str | None] = Field(None, description="the source's state at the start; filled in by Baton")

    def problems(self) -> list[Problem]:
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            value = " and ".join(given) or None
            return [Problem("path", value, f"exactly one of {', '.join(SOURCES)}, the rows' source")]
        of_functions = {"arguments": self.arguments, "documents": self.documents, "environment": self.environment}
        only = of_functions if self.function is None else {}
        problems = [
            Problem(name, value, "only with a `function`; leave it out") for name, value in only.items() if value
        ]
        olds = {old for old in self.columns.values() if old is not None}
        both = sorted({name for name, old in self.columns.items() if old is None} & olds)
        return problems + [Problem("columns", name, "to rename a column or to leave it out, not both") for name in both]

    def missing(self) -> list[Problem]:
        """The problems with the source on this machine, by names and sizes; `faults` in first.py checks first rows."""
        if self.path is not None:
            return self.files().missing()
        if self.huggingface is not None:
            problems = self.huggingface.source().missing()
            return [problem.under("huggingface") for problem in problems if problem.path != "text_field"]
        return [problem.under("function") for problem in self.function.problems()] if self.function else []

    def pinned(self, *, ask_hub: bool = False) -> "RowsSpec":
        """A copy with the source's current state: the files' names, sizes and times; the function's source; with
        `ask_hub` the newest commit of a Hub dataset. Raises UserError."""
        if self.path is not None:
            return self.model_copy(update={"state": self.files().state()})
        if self.huggingface is not None:
            source = self.huggingface.source()
            state = source.state() or (source.commit() if ask_hub else "")
            return self.model_copy(update={"state": state})
        return self.model_copy(update={"function": self.function.pinned()}) if self.function else self

    def unread(self) -> list[str]:
        """A line about the files of `path` that are not read, if there are any. Raises StorageError."""
        return [line] if self.path is not None and (line := self.files().unread()) else []

    def local_files(self) -> list[File]:
        """Local files that `path` refers to."""
        return self.files().local_files() if self.path is not None else []

    def by_path(self) -> dict[str, RowFiles | HuggingFaceSource]:
        if self.path is not None:
            return {"": self.files()}
        return {"huggingface": self.huggingface.source()} if self.huggingface else {}

    def files(self) -> RowFiles:
        """The files of `path`, which must be set."""
        assert self.path is not None
        return RowFiles(path=self.path)

    def max_bytes(self) -> int:
        return int(self.max_row_mb * 1e6)

    def place(self) -> str:
        """The source's name, for messages."""
        if self.path is not None:
            return self.path if is_bucket(self.path) else str(expanded(self.path))
        return self.huggingface.name if self.huggingface else self.function.name if self.function else "nowhere"


class DecontaminateSpec(StageSpec):
    """Drop the rows of a set whose prompt occurs in the held-out split of any of several sets."""
