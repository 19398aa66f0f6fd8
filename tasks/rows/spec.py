"""What a set of rows is: where its rows come from, what their columns are called, and which of them are held out.

    RowsSpec.model_validate({"path": "data/chat/*.jsonl"})
    RowsSpec.model_validate({"huggingface": {"name": "openai/gsm8k"}, "columns": {"prompt": "question"}})
    RowsSpec.model_validate({"function": "sums.py:rows", "held_out": 0.1})

    spec.problems()       what is wrong across fields
    spec.missing()        what its source lacks on this machine, looked up cheaply
    spec = spec.as_found()  with the source's present state in it, so that changed files are not a cache hit

Which formats are recognised is said in recognise.py.
"""

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from infra.placement.address import File, digest_of
from infra.placement.storage import StorageError, is_bucket
from tasks.data.source_spec import FilesSource, HuggingFaceSource, expanded
from tasks.functions import Function
from tasks.spec import PathText, Problem, Spec, StageSpec

if TYPE_CHECKING:
    from tasks.rows.rows import First

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".parquet")
SOURCES = ("path", "huggingface", "function")

Kind = Literal["messages", "prompt_completion", "preference", "prompt", "text"]
FormatName = Literal[Kind, "sharegpt", "sharegpt_preference", "openai_preference", "alpaca", "verl"]


class RowFiles(FilesSource):
    """The files that rows are read from; of the corpus's sources it has the finding of files. In a folder, .json is
    what is about the data as often as it is data: such files are named, or found by a glob."""

    suffixes = SUFFIXES  # type: ignore[assignment]  # a ClassVar, narrowed there by its own value

    def files(self) -> list[File]:
        found = super().files()
        names = {each.name for each in found}
        named = glob.has_magic(self.path) or self.path.rstrip("/").rpartition("/")[2] in names
        whole = named or digest_of(self.path)  # what was sent in an archive was chosen before
        return [each for each in found if whole or not each.name.endswith(".json")]


class HuggingFaceRows(Spec):
    """A Hugging Face dataset by its hub name, or a folder that `save_to_disk` wrote."""

    name: PathText = Field(min_length=1, description="hub name (`owner/name`) or folder")
    config: str | None = Field(None, description="the dataset's configuration, where it has several")
    split: str = Field("train", min_length=1, description="which of the dataset's splits to read")
    streaming: bool = Field(True, description="read over the network as it goes, without a download first")

    def source(self) -> HuggingFaceSource:
        return HuggingFaceSource(name=self.name, config=self.config, split=self.split, streaming=self.streaming)

    def local_files(self) -> list[File]:
        """Those of this machine that it names."""
        return self.source().local_files()


class RowsSpec(StageSpec):
    """A set of rows from one source: checked one by one, exact duplicates dropped, split by content."""

    path: PathText | None = Field(
        None,
        min_length=1,
        description=f"a file, a folder (searched to the bottom) or a glob, of {', '.join(SUFFIXES)}; a folder's .json "
        "files are left out",
    )
    huggingface: HuggingFaceRows | None = Field(None, description="a dataset of the hub, or a folder of one")
    function: Function | None = Field(
        None,
        description="`file.py:function` or `package.module:function`, which gives the rows as dicts, one by one; its "
        "parameters `seed` and `limit`, where it has them, are given this spec's",
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="more of the function's, by name")
    documents: bool = Field(
        False,
        description="the function makes its rows of the corpus's documents: its parameter `documents` is an iterable "
        "of {text, source, id}; rows of held-out documents are held out, whatever `held_out` says",
    )
    columns: dict[str, str] = Field(
        default_factory=dict, description="columns to rename, new name: old name, such as {prompt: question}"
    )
    format: FormatName | None = Field(
        None, description="what the rows are, where their columns fit several; else recognised by their columns"
    )
    held_out: float = Field(
        0.05,
        ge=0,
        le=1,
        description="share of the rows held out for evaluation, chosen by a hash of the prompt: rows with one prompt "
        "stay together, and other rows may come and go",
    )
    limit: int | None = Field(None, ge=1, description="read no more than this many rows, the first")
    seed: int = Field(0, ge=0, lt=2**31, description="of the choice of rows that are held out, and the function's")
    max_row_mb: float = Field(
        2.0,
        gt=0,
        le=1000,
        description="largest row as JSON, MB; a larger one is a faulty one. 2 MB are about 500,000 tokens of English",
    )
    faulty: Literal["refuse", "drop"] = Field(
        "refuse", description="whether a faulty row ends the stage, or is dropped, counted and told"
    )
    state: str | None = Field(
        None, description="what the source looked like at the start; filled in by Baton, see `as_found`"
    )

    def problems(self) -> list[Problem]:
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            value = " and ".join(given) or None
            return [Problem("path", value, f"exactly one of {', '.join(SOURCES)}: where the rows come from")]
        only = {"arguments": self.arguments, "documents": self.documents} if self.function is None else {}
        found = [Problem(name, value, "is for a `function`; leave it out") for name, value in only.items() if value]
        olds = list(self.columns.values())
        twice = sorted({old for old in olds if olds.count(old) > 1})
        return found + [Problem("columns", old, "each old column is renamed once") for old in twice]

    def missing(self) -> list[Problem]:
        """What the source lacks on this machine, looked up cheaply."""
        if self.path is not None:
            return self.files().missing() or self._faults()
        if self.huggingface is not None:
            found = self.huggingface.source().missing()
            return [each.under("huggingface") for each in found if each.path != "text_field"]
        return [each.under("function") for each in self.function.problems()] if self.function else []

    def first(self) -> "First | None":
        """The first rows of files that can be looked at; None: of another source. Raises StageError."""
        if self.path is None or digest_of(self.path):
            return None
        from tasks.rows.rows import peek  # pyarrow: not on the path of --help

        return peek(self, Path())

    def _faults(self) -> list[Problem]:
        """What is wrong with the first rows."""
        from tasks.job import StageError

        try:
            first = self.first()
        except (StageError, StorageError) as error:
            return [Problem("path", self.path, f"files whose rows can be read: {error}")]
        if first is None or not first.faults or (first.rows and self.faulty == "drop"):
            return []
        return [Problem("path", self.path, f"rows without faults, or `faulty: drop`. {'; '.join(first.faults[:3])}")]

    def as_found(self, *, ask_hub: bool = False) -> "RowsSpec":
        """This spec with its source's present state: the files' names, sizes and times; the function's source; with
        `ask_hub` the newest commit of a dataset of the hub. Raises Stopped."""
        if self.path is not None:
            return self.model_copy(update={"state": self.files().state()})
        if self.huggingface is not None:
            source = self.huggingface.source()
            state = source.state() or (source.commit() if ask_hub else "")
            return self.model_copy(update={"state": state})
        return self.model_copy(update={"function": self.function.as_found()}) if self.function else self

    def local_files(self) -> list[File]:
        """Those of this machine that `path` names."""
        return self.files().local_files() if self.path is not None else []

    def files(self) -> RowFiles:
        """Of `path`."""
        assert self.path is not None
        return RowFiles(path=self.path)

    def max_bytes(self) -> int:
        return int(self.max_row_mb * 1e6)

    def place(self) -> str:
        """The source in a person's words, for messages."""
        if self.path is not None:
            return self.path if is_bucket(self.path) else str(expanded(self.path))
        return self.huggingface.name if self.huggingface else self.function.name if self.function else "nowhere"


class DecontaminateSpec(StageSpec):
    """A set of rows without those whose prompt stands in a held-out part of any of several sets."""
