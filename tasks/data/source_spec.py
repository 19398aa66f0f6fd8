"""The six kinds of source, each a small spec that can say what it lacks before anything is spent.

`missing()` looks at names, sizes and the first record only. `state()` says what the source looks
like now, so that changed files are noticed. The reading itself is in sources.py.
"""

import glob
import json
import os
import platform
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from infra.errors import Stopped
from infra.placement.address import File, bring, digest_of, find, state_of
from infra.placement.storage import StorageError, is_bucket, read
from tasks.functions import Function
from tasks.spec import NotSeen, PathText, Problem, Spec

HUB_TIMEOUT_S = 30.0
LARGEST_MB = 32.0  # of a document, unless the source's spec says otherwise

TEXT_SUFFIXES = (".txt", ".md", ".py")
JSONL_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
PARQUET_SUFFIXES = (".parquet",)

# what is not the library's own source: its tests, what was installed beside it, and what the build generated
_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_GENERATED = ("_sysconfigdata", "config-")


class _Bounded(Spec):
    """What the sources whose documents can be of any size have in common."""

    max_document_mb: float = Field(
        LARGEST_MB,
        gt=0,
        le=1000,
        description="largest document, with JSONL the largest line; MB. A larger one is refused with its place "
        "(reading it takes up to 13 times as much memory)",
        json_schema_extra={"identity": False},  # what is within it is read alike
    )

    def max_bytes(self) -> int:
        return int(self.max_document_mb * 1e6)


class StdlibSource(Spec):
    """The Python standard library of the running interpreter, without its tests: ~11 MB of code."""

    kind: Literal["stdlib"] = "stdlib"

    def root(self) -> Path:
        return Path(sysconfig.get_path("stdlib"))

    def files(self) -> list[File]:
        paths = sorted(path for path in _walk(self.root(), _is_library) if path.suffix == ".py")
        return [File.here(path, self.root()) for path in paths]

    def missing(self) -> list[Problem]:
        if (self.root() / "ast.py").is_file():
            return []
        return [Problem("kind", self.kind, f"this interpreter has no sources in {self.root()}; use another kind")]

    def state(self) -> str:
        return f"{platform.python_implementation()} {platform.python_version()}"


class _OnDisk(_Bounded):
    """What the sources that read files have in common."""

    suffixes: ClassVar[tuple[str, ...]]  # of the files that are read

    path: PathText = Field(
        min_length=1,
        description="a file, a folder (searched to the bottom) or a glob (`**` for any depth), here or at an address "
        "(s3://…, gs://…, az://…, hf://…)",
    )

    def files(self) -> list[File]:
        """The files that will be read, in order; in a folder, those under a hidden name are left out. Raises
        StorageError."""
        if is_bucket(self.path) and not digest_of(self.path):
            return [file for file in find(self.path) if file.name.endswith(self.suffixes)]
        whole = bring(self.path) if digest_of(self.path) else expanded(self.path)
        if whole.is_dir():
            found = list(_walk(whole, lambda name: not name.startswith(".")))
        elif whole.exists():
            found = [whole]
        else:
            found = [Path(name) for name in glob.glob(str(whole), recursive=True)]  # noqa: PTH207  absolute patterns
        root = _root(whole)
        paths = sorted(path for path in found if path.name.endswith(self.suffixes) and path.is_file())
        return [File.here(path, root) for path in paths]

    def missing(self) -> list[Problem]:
        if digest_of(self.path):
            return []  # it was looked at when it was packed
        try:
            return self._missing(self.files())
        except StorageError as error:
            return [NotSeen("path", self.path, f"an address that can be read: {error.message}")]

    def local_files(self) -> list[File]:
        """Those of this machine that it names."""
        return [] if is_bucket(self.path) else self.files()

    def _missing(self, files: list[File]) -> list[Problem]:
        if not files:
            return [Problem("path", self.path, _why_nothing(self.path, ", ".join(self.suffixes)))]
        unreadable = [file for file in files if not is_bucket(file.place) and not os.access(file.place, os.R_OK)]
        if unreadable:
            return [Problem("path", self.path, f"readable files; {unreadable[0].place} may not be read (chmod +r)")]
        if not any(file.size for file in files):
            return [Problem("path", self.path, f"at least one file with text; all {len(files)} that match are empty")]
        return []

    def state(self) -> str:
        """Nothing where the address itself says what is there. Raises StorageError."""
        return "" if digest_of(self.path) else state_of(self.files())


class FilesSource(_OnDisk):
    """Each .txt, .md or .py file is a document."""

    kind: Literal["files"] = "files"

    suffixes = TEXT_SUFFIXES


class JsonlSource(_OnDisk):
    """Each line is a JSON object, with the document in one field."""

    kind: Literal["jsonl"] = "jsonl"
    text_field: str = Field("text", min_length=1, description="the field that holds the document")

    suffixes = JSONL_SUFFIXES

    def _missing(self, files: list[File]) -> list[Problem]:
        if problems := super()._missing(files):
            return problems
        from tasks.data.sources import first_jsonl_record  # pyarrow: not on the path of --help
        from tasks.job import StageError

        first = next(file for file in files if file.size)
        try:
            record = first_jsonl_record(first, self.max_bytes())
        except StageError as error:
            return [Problem("path", self.path, str(error))]
        return _without_field(self.text_field, list(record), first.place)


class ParquetSource(_OnDisk):
    """Each row is a document, its text in one column."""

    kind: Literal["parquet"] = "parquet"
    text_field: str = Field("text", min_length=1, description="the column that holds the document")

    suffixes = PARQUET_SUFFIXES

    def _missing(self, files: list[File]) -> list[Problem]:
        if problems := super()._missing(files):
            return problems
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with files[0].open() as first:
                names = pq.read_schema(first).names
        except (OSError, pa.ArrowInvalid) as error:
            return [Problem("path", self.path, f"Parquet files; {files[0].place}: {error}")]
        return _without_field(self.text_field, names, files[0].place)


class FunctionSource(_Bounded):
    """Documents that a function of yours makes: text, one by one."""

    kind: Literal["function"] = "function"
    function: Function = Field(description="`file.py:function` or `package.module:function`")
    arguments: dict[str, Any] = Field(default_factory=dict, description="the function's, by name")

    def missing(self) -> list[Problem]:
        return [problem.under("function") for problem in self.function.problems()]

    def local_files(self) -> list[File]:
        return []  # its source is part of the spec

    def state(self) -> str:
        return ""


class HuggingFaceSource(_Bounded):
    """A Hugging Face dataset by its hub name, or a folder that `save_to_disk` wrote, here or at an address."""

    kind: Literal["huggingface"] = "huggingface"
    name: PathText = Field(min_length=1, description="hub name (`owner/name`), folder, or its address")
    config: str | None = Field(None, description="the dataset's configuration, where it has several")
    split: str = Field("train", min_length=1, description="which of the dataset's splits to read")
    text_field: str = Field("text", min_length=1, description="the column that holds the document")
    streaming: bool = Field(True, description="read over the network as it goes, without a download first")
    limit: int | None = Field(None, ge=1, description="read no more than this many rows")

    def folder(self) -> Path | None:
        """The dataset's folder when it is on this machine, or was sent there in an archive. Raises StorageError."""
        path = bring(self.name) if digest_of(self.name) else expanded(self.name)
        return path if path.is_dir() else None

    def missing(self) -> list[Problem]:
        if digest_of(self.name):
            return []  # it was looked at when it was packed
        if self.name.startswith("hf://"):
            return [Problem("name", self.name, "its name on the hub, without hf://datasets/: owner/name")]
        if is_bucket(self.name):
            try:
                return self._missing(self.name)
            except StorageError as error:
                return [NotSeen("name", self.name, f"an address that can be read: {error.message}")]
        folder = self.folder()
        if folder is None:
            if is_path(self.name):
                return [Problem("name", self.name, f"a hub name or a folder; {expanded(self.name)} is not there")]
            return []  # whether the hub has it takes a network; the stage says so if not
        return self._missing(str(folder))

    def local_files(self) -> list[File]:
        """Those of this machine that it names."""
        folder = None if is_bucket(self.name) else self.folder()
        return files_below(folder) if folder else []

    def _missing(self, folder: str) -> list[Problem]:
        try:
            if (splits := json_at(f"{folder}/dataset_dict.json")) is not None:
                if self.split not in splits["splits"]:
                    return [Problem("split", self.split, f"one of {', '.join(map(str, splits['splits']))} ({folder})")]
                folder = f"{folder}/{self.split}"
            if json_at(f"{folder}/state.json") is not None:
                features = list(json_at(f"{folder}/dataset_info.json")["features"])
                return _without_field(self.text_field, features, folder)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            return [
                Problem("name", self.name, f"a folder that save_to_disk wrote; {folder} is damaged: {error!r:.200}")
            ]
        if is_bucket(folder):
            allowed = "a folder that save_to_disk wrote; for other files at an address use kind: parquet or jsonl"
            return [Problem("name", self.name, allowed)]
        return []

    def state(self) -> str:
        """As for files, when the dataset is a folder or at an address; the hub's own state is not asked for."""
        if digest_of(self.name):
            return ""
        if is_bucket(self.name):
            return state_of(find(self.name))
        return state_of(files_below(folder)) if (folder := self.folder()) else ""

    def commit(self) -> str:
        """The dataset's newest commit on the hub; nothing with HF_HUB_OFFLINE=1, since what was downloaded
        earlier does not change. Raises Stopped when the hub does not answer."""
        if os.environ.get("HF_HUB_OFFLINE") == "1":
            return ""
        from huggingface_hub import dataset_info
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's or httpx2's, by version

        try:
            return dataset_info(self.name, timeout=HUB_TIMEOUT_S).sha or ""
        except (HTTPError, OSError, ValueError) as error:
            raise Stopped(
                f"dataset {self.name!r}: the hub does not say what its newest commit is ({error}). Check the name and "
                "the network, or set HF_HUB_OFFLINE=1 to use what was downloaded earlier."
            ) from error


def is_path(name: str) -> bool:
    """Whether a name that may be a hub's means a place on this machine."""
    return name.startswith((".", "/", "~")) or expanded(name).exists()


def expanded(path: str) -> Path:
    """Absolute, with ~ for the home folder."""
    return Path(path).expanduser().absolute()


def files_below(folder: Path) -> list[File]:
    return [File.here(path, folder) for path in sorted(folder.rglob("*")) if path.is_file()]


def _root(whole: Path) -> Path:
    """What documents are named relative to: the folder, or the glob's part before any wildcard."""
    if whole.is_dir():
        return whole
    parts = whole.parts[:-1]
    wild = [index for index, part in enumerate(parts) if glob.has_magic(part)]
    return Path(*parts[: wild[0]] if wild else parts)


def json_at(place: str) -> Any:
    """A JSON file's content; None when it is not there. Raises StorageError."""
    try:
        return json.loads(read(place) if is_bucket(place) else Path(place).read_bytes())
    except FileNotFoundError:
        return None


def _walk(root: Path, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """All files below a folder, but for what has (or is under) an unwanted name."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = filter(wanted, subfolders)
        yield from (Path(folder, name) for name in filter(wanted, names))


def _is_library(name: str) -> bool:
    return name not in _NOT_LIBRARY and not name.startswith(_GENERATED)


def _why_nothing(named: str, kinds: str) -> str:
    if is_bucket(named):
        return f"the address of a file in {kinds}, or of a folder or glob of such; nothing like that is there"
    path = expanded(named)
    if path.is_dir():
        return f"a folder with files in {kinds}; {path} has none"
    if path.exists():
        return f"a file in {kinds}, or a folder or glob of such"
    if glob.has_magic(str(path)):
        return f"a glob that matches files in {kinds}; nothing matches"
    return f"an existing file, folder or glob; {path} is not there"


def _without_field(name: str, present: list[str], where: str) -> list[Problem]:
    if name in present:
        return []
    return [Problem("text_field", name, f"a field of {where}: {listed(present)}")]


def listed(names: list[str], most: int = 20) -> str:
    """Names that come from a file, for a message: printable, not too long, not too many."""
    shown = [name if name.isprintable() else ascii(name) for name in map(str, names[:most])]
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([name if len(name) <= 40 else f"{name[:40]}…" for name in shown] + more) or "none"
