"""The five kinds of source, each a small spec that can say what it lacks before anything is spent.

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
from typing import ClassVar, Literal

from blake3 import blake3
from pydantic import Field

from infra.errors import Stopped
from tasks.spec import PathText, Problem, Spec

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

    def files(self) -> list[Path]:
        return sorted(path for path in _walk(self.root(), _is_library) if path.suffix == ".py")

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
        min_length=1, description="a file, a folder (searched to the bottom) or a glob (`**` for any depth)"
    )

    def root(self) -> Path:
        """What documents are named relative to: the folder, or the glob's part before any wildcard."""
        whole = expanded(self.path)
        if whole.is_dir():
            return whole
        parts = whole.parts[:-1]
        wild = [index for index, part in enumerate(parts) if glob.has_magic(part)]
        return Path(*parts[: wild[0]] if wild else parts)

    def files(self) -> list[Path]:
        """The files that will be read, sorted; in a folder, those under a hidden name are left out."""
        whole = expanded(self.path)
        if whole.is_dir():
            found = list(_walk(whole, lambda name: not name.startswith(".")))
        elif whole.exists():
            found = [whole]
        else:
            found = [Path(name) for name in glob.glob(str(whole), recursive=True)]  # noqa: PTH207  absolute patterns
        return sorted(path for path in found if path.name.endswith(self.suffixes) and path.is_file())

    def missing(self) -> list[Problem]:
        kinds = ", ".join(self.suffixes)
        files = self.files()
        if not files:
            return [Problem("path", self.path, _why_nothing(expanded(self.path), kinds))]
        unreadable = [path for path in files if not os.access(path, os.R_OK)]
        if unreadable:
            return [Problem("path", self.path, f"readable files; {unreadable[0]} may not be read (chmod +r)")]
        if all(path.stat().st_size == 0 for path in files):
            return [Problem("path", self.path, f"at least one file with text; all {len(files)} that match are empty")]
        return []

    def state(self) -> str:
        return state_of(self.root(), self.files())


class FilesSource(_OnDisk):
    """Each .txt, .md or .py file is a document."""

    kind: Literal["files"] = "files"

    suffixes = TEXT_SUFFIXES


class JsonlSource(_OnDisk):
    """Each line is a JSON object, with the document in one field."""

    kind: Literal["jsonl"] = "jsonl"
    text_field: str = Field("text", min_length=1, description="the field that holds the document")

    suffixes = JSONL_SUFFIXES

    def missing(self) -> list[Problem]:
        if problems := super().missing():
            return problems
        from tasks.data.sources import first_jsonl_record  # pyarrow: not on the path of --help
        from tasks.job import StageError

        first = next(path for path in self.files() if path.stat().st_size)
        try:
            record = first_jsonl_record(first, self.max_bytes())
        except StageError as error:
            return [Problem("path", self.path, str(error))]
        return _without_field(self.text_field, list(record), first)


class ParquetSource(_OnDisk):
    """Each row is a document, its text in one column."""

    kind: Literal["parquet"] = "parquet"
    text_field: str = Field("text", min_length=1, description="the column that holds the document")

    suffixes = PARQUET_SUFFIXES

    def missing(self) -> list[Problem]:
        if problems := super().missing():
            return problems
        import pyarrow as pa
        import pyarrow.parquet as pq

        first = self.files()[0]
        try:
            names = pq.read_schema(first).names
        except (OSError, pa.ArrowInvalid) as error:
            return [Problem("path", self.path, f"Parquet files; {first}: {error}")]
        return _without_field(self.text_field, names, first)


class HuggingFaceSource(_Bounded):
    """A Hugging Face dataset by its hub name, or a folder that `save_to_disk` wrote."""

    kind: Literal["huggingface"] = "huggingface"
    name: PathText = Field(min_length=1, description="hub name (`owner/name`) or folder")
    config: str | None = Field(None, description="the dataset's configuration, where it has several")
    split: str = Field("train", min_length=1, description="which of the dataset's splits to read")
    text_field: str = Field("text", min_length=1, description="the column that holds the document")
    streaming: bool = Field(True, description="read over the network as it goes, without a download first")
    limit: int | None = Field(None, ge=1, description="read no more than this many rows")

    def folder(self) -> Path | None:
        """The dataset's folder when it is on this machine."""
        path = expanded(self.name)
        return path if path.is_dir() else None

    def missing(self) -> list[Problem]:
        folder = self.folder()
        if folder is None:
            if is_path(self.name):
                return [Problem("name", self.name, f"a hub name or a folder; {expanded(self.name)} is not there")]
            return []  # whether the hub has it takes a network; the stage says so if not
        try:
            if (folder / "dataset_dict.json").is_file():
                splits = list(json.loads((folder / "dataset_dict.json").read_text())["splits"])
                if self.split not in splits:
                    return [Problem("split", self.split, f"one of {', '.join(map(str, splits))} ({folder})")]
                folder = folder / self.split
            if (folder / "state.json").is_file():
                features = json.loads((folder / "dataset_info.json").read_text())["features"]
                return _without_field(self.text_field, list(features), folder)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            return [
                Problem("name", self.name, f"a folder that save_to_disk wrote; {folder} is damaged: {error!r:.200}")
            ]
        return []

    def state(self) -> str:
        """As for files, when the dataset is a folder here; the hub's own state is not asked for."""
        folder = self.folder()
        if folder is None:
            return ""
        return state_of(folder, sorted(path for path in folder.rglob("*") if path.is_file()))

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


def state_of(root: Path, files: list[Path]) -> str:
    """BLAKE3 over the files' names below the root, sizes and modification times."""
    hasher = blake3()
    for path in files:
        about = path.stat()
        hasher.update(f"{path.relative_to(root)}\0{about.st_size}\0{about.st_mtime_ns}\n".encode())
    return hasher.hexdigest()


def _walk(root: Path, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """All files below a folder, but for what has (or is under) an unwanted name."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = filter(wanted, subfolders)
        yield from (Path(folder, name) for name in filter(wanted, names))


def _is_library(name: str) -> bool:
    return name not in _NOT_LIBRARY and not name.startswith(_GENERATED)


def _why_nothing(path: Path, kinds: str) -> str:
    if path.is_dir():
        return f"a folder with files in {kinds}; {path} has none"
    if path.exists():
        return f"a file in {kinds}, or a folder or glob of such"
    if glob.has_magic(str(path)):
        return f"a glob that matches files in {kinds}; nothing matches"
    return f"an existing file, folder or glob; {path} is not there"


def _without_field(name: str, present: list[str], where: Path) -> list[Problem]:
    if name in present:
        return []
    return [Problem("text_field", name, f"a field of {where}: {listed(present)}")]


def listed(names: list[str], most: int = 20) -> str:
    """Names that come from a file, for a message: printable, not too long, not too many."""
    shown = [name if name.isprintable() else ascii(name) for name in map(str, names[:most])]
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([name if len(name) <= 40 else f"{name[:40]}…" for name in shown] + more) or "none"
