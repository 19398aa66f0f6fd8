"""Read files at an address: s3://…, gs://…, az://…, hf://…, or any other protocol of fsspec.

An address that ends in #blake3=DIGEST refers to the files in an archive (`pack`), identified by the digest alone,
wherever the archive is.
"""

import glob
import io
import os
import re
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, cast

from blake3 import blake3

from baton.infra.paths import cache_folder
from baton.infra.storage import buckets as storage
from baton.infra.storage.buckets import StorageError, check_bucket, file_system, is_bucket, with_retries
from baton.infra.storage.cached_folder import cached_folder
from baton.infra.storage.durable import write_text

DIGEST = "#blake3="
_DIGEST = re.compile(f"{DIGEST}([0-9a-f]{{64}})$")
BLOCK_BYTES = 8 << 20  # read into memory at a time, of a file at an address
PATIENCE_S = 20.0  # how long listing a storage is retried
VERSIONS = ("ETag", "etag", "blob_id", "mtime", "LastModified", "last_modified", "created")  # fsspec's keys


@dataclass(frozen=True)
class File:
    """A file on this machine or at an address."""

    place: str
    name: str  # relative to the given folder, or to a glob's part before any wildcard
    size: int
    version: str  # changes with the file; empty for a file that never changes

    @classmethod
    def local(cls, path: Path, root: Path, *, unpacked: bool = False) -> "File":
        """Return a file of this machine. `unpacked`: it comes from an archive that a digest identifies, so that the
        file's times mean nothing, and differ between machines."""
        about = path.stat()
        return cls(str(path), path.relative_to(root).as_posix(), about.st_size, "" if unpacked else _version(about))

    def changed(self) -> bool:
        """Return whether a file of this machine has changed. A change at an address is detected on reading. Raises
        OSError."""
        if is_bucket(self.place):
            return False
        about = Path(self.place).stat()
        return about.st_size != self.size or (self.version not in ("", _version(about)))

    def open(self) -> IO[bytes]:
        """Open the file as a seekable stream. Raises OSError, StorageError."""
        if not is_bucket(self.place):
            return Path(self.place).open("rb")
        return cast(IO[bytes], io.BufferedReader(_Stream(self.place), BLOCK_BYTES))


class _Stream(io.RawIOBase):
    """A file at an address; interrupted reads are retried."""

    def __init__(self, place: str) -> None:
        self._place = place
        files = file_system(place)
        self._file: Any = with_retries(lambda: files.open(place, "rb", cache_type="none"), place)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        content = with_retries(lambda: self._read(len(buffer)), self._place)
        buffer[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        """Read in large blocks: Python's default reads 8 KB at a time."""
        return b"".join(iter(lambda: self.read(BLOCK_BYTES) or b"", b""))

    def _read(self, size: int) -> bytes:
        try:
            return bytes(self._file.read(size))
        except OSError as error:
            if type(error).__name__ != "FileExpired":  # an exception of s3fs, which is not imported here
                raise
            message = f"{self._place}: was replaced while it was read. Run the same command again"
            raise StorageError(message, curable=False) from error

    def close(self) -> None:
        self._file.close()
        super().close()


def _version(about: os.stat_result) -> str:
    """Return the times of the content and of the inode. Programs can set the former, and `cp -p`, `rsync -t` and `tar`
    do, so that another file may have the same; only the kernel sets the latter."""
    return f"{about.st_mtime_ns}.{about.st_ctime_ns}"


def find(address: str) -> list[File]:
    """Return the file at an address, all files in a folder, or the files that match a glob, sorted. Hidden files are
    included only if the address names them. Raises StorageError."""
    files = file_system(address)
    path = str(files._strip_protocol(address)).rstrip("/")

    def look() -> tuple[str, dict[str, Any]]:
        files.invalidate_cache()  # other processes write there
        if glob.has_magic(path):
            parts = path.split("/")
            fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
            return "/".join(parts[:fixed]), files.glob(path, detail=True)
        info = files.info(path)
        if info["type"] == "file":
            return path.rpartition("/")[0], {path: info}
        return path, files.find(path, detail=True)

    try:
        root, infos = with_retries(look, address, patience_s=PATIENCE_S)
    except FileNotFoundError:
        root, infos = path, {}
    if not infos:
        check_bucket(address)
    listed = [
        _file(files, place, place.removeprefix(f"{root}/"), info)
        for place, info in infos.items()
        if info["type"] == "file"
    ]
    if "/." not in path:
        listed = [file for file in listed if not any(part.startswith(".") for part in file.name.split("/"))]
    return sorted(listed, key=lambda file: file.name.split("/"))


def _file(files: Any, place: str, name: str, info: dict[str, Any]) -> File:
    if info.get("size") is None:
        raise StorageError(f"{place}: its server does not report the file's size", curable=False)
    version = next((info[key] for key in VERSIONS if info.get(key)), "")
    return File(files.unstrip_protocol(place), name, info["size"], str(version))


def files_in(folder: Path, *inner: str) -> list[File]:
    """Return the files directly in a local folder and in its `inner` folders; none if the folder does not exist."""
    folders = [each for each in (folder, *(folder / name for name in inner)) if each.is_dir()]
    return [File.local(path, folder) for each in folders for path in sorted(each.iterdir()) if path.is_file()]


def state_of(files: Iterable[File]) -> str:
    """Return BLAKE3 over the files' names, sizes and versions."""
    hasher = blake3()
    for file in files:
        hasher.update(f"{file.name}\0{file.size}\0{file.version}\n".encode(errors="surrogateescape"))
    return hasher.hexdigest()


def digest_of(path: str) -> str | None:
    """Return the digest in an address, if any."""
    match = _DIGEST.search(path)
    return match[1] if match else None


def selected(files: Iterable[File], patterns: Sequence[str]) -> list[File]:
    """Return the files whose names match one of the patterns, in which * does not match a slash."""
    return [file for file in files if any(_matches(file.name, pattern) for pattern in patterns)]


def _matches(name: str, pattern: str) -> bool:
    return name.count("/") == pattern.count("/") and fnmatch(name, pattern)


def fetch(address: str, patterns: Sequence[str] = ("*",)) -> Path:
    """Download an archive's files, or those of a folder that match `patterns`, into this node's cache, unless the cache
    has them unchanged; returns the complete folder. Raises StorageError."""
    digest = digest_of(address)
    cache = cache_folder("brought")
    files = [] if digest else _existing(selected(find(address), patterns), address)
    key = digest or blake3(f"{address}\0{state_of(files)}".encode()).hexdigest()
    folder = cache / key

    def fault(copy: Path) -> str:
        return "" if _is_intact(copy) else f"{address}: its copy in {copy} was changed or is incomplete."

    def fill(copy: Path) -> None:
        if digest:
            with TemporaryDirectory(dir=cache, prefix=f"{key}.", suffix=".partial") as place:
                _download(_existing(find(address.partition(DIGEST)[0]), address), Path(place))
                (archive,) = Path(place).iterdir()
                _unpack(archive, digest, copy)
        else:
            _download(files, copy)
            if selected(find(address), patterns) != files:
                raise StorageError(f"{address}: was changed during the download. Run the same command again", False)
        write_text(_record(folder), _content_of(copy))

    return cached_folder(folder, fault, fill)


def _existing(files: list[File], address: str) -> list[File]:
    """Return the files, if there are any. Raises StorageError."""
    if not files:
        fix = " any more: submit the run again from the machine with its files" if digest_of(address) else ""
        raise StorageError(f"{address}: nothing exists there{fix}", curable=False)
    return files


_intact: dict[Path, list[tuple[str, int, int, int]]] = {}  # the state of copies that this process has checked


def _is_intact(folder: Path) -> bool:
    """Return whether a copy is complete and unchanged since its download, by its digest."""
    if not _record(folder).exists():
        return False
    about = [(str(path), path.stat()) for path in sorted(folder.rglob("*"))]
    state = [(name, stat.st_ino, stat.st_size, stat.st_ctime_ns) for name, stat in about]
    if _intact.get(folder) != state:
        if _content_of(folder) != _record(folder).read_text():
            return False
        _intact[folder] = state
    return True


def _record(folder: Path) -> Path:
    """Return the file with the digest of a copy."""
    return folder.with_suffix(".content")


def _content_of(folder: Path) -> str:
    """Return BLAKE3 over the names and contents of a folder's files."""
    hasher = blake3()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
        hasher.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return hasher.hexdigest()


def _download(files: list[File], folder: Path) -> None:
    place = files[0].place.rpartition("/")[0]
    try:
        storage.get(place, {file.name: file.size for file in files}, folder)
    except FileNotFoundError as error:
        raise StorageError(f"{place}: {error}: removed during the download", curable=False) from error


def _unpack(archive: Path, digest: str, folder: Path) -> None:
    if blake3().update_mmap(archive).hexdigest() != digest:
        raise StorageError(f"{archive.name}: is damaged in the storage: its BLAKE3 is not {digest}", curable=False)
    try:
        with tarfile.open(archive) as tar:
            for entry in tar:  # tarfile's own filters came with Python 3.11.4; Debian 12 has 3.11.2
                path = folder / entry.name
                if not entry.isfile() or ".." in path.parts or not path.is_relative_to(folder):
                    raise tarfile.TarError(f"it has {entry.name}")
                path.parent.mkdir(parents=True, exist_ok=True)
                with cast(IO[bytes], tar.extractfile(entry)) as content, path.open("wb") as stream:
                    shutil.copyfileobj(content, stream)
    except tarfile.TarError as error:
        raise StorageError(f"{archive.name}: is not a tar archive of files: {error}", curable=False) from error


def pack(files: Iterable[File], archive: Path) -> str:
    """Pack local files into a reproducible archive, without their metadata; returns its digest."""
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for file in files:
            entry = tarfile.TarInfo(file.name)
            entry.size = file.size
            with Path(file.place).open("rb") as content:
                tar.addfile(entry, content)
    return str(blake3().update_mmap(archive).hexdigest())


def send_packed(files: Iterable[File], root: str) -> str:
    """Upload an archive of local files below the storage `root`, unless it exists there; returns its address with its
    digest. Raises StorageError."""
    with TemporaryDirectory() as folder:
        archive = Path(folder, "files.tar")
        digest = pack(files, archive)
        place = f"{root}/files/{digest}"
        if storage.sizes(place).get(archive.name) != archive.stat().st_size:
            storage.put(archive.parent, [archive.name], place)
    return f"{place}/{archive.name}{DIGEST}{digest}"
