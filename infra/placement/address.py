"""What a recipe names by an address: s3://…, gs://…, az://…, hf://…, or any other protocol of fsspec.

An address that ends in #blake3=DIGEST is of an archive (`pack`), and stands for the files in it: it is identified by
the digest alone, wherever the archive is.
"""

import fcntl
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
from typing import IO, Any, cast
from uuid import uuid4

from blake3 import blake3

from infra.durable import make_folder, rename, sync_tree
from infra.home import baton_home
from infra.placement import storage
from infra.placement.storage import StorageError, file_system, is_bucket, persistently

DIGEST = "#blake3="
_DIGEST = re.compile(f"{DIGEST}([0-9a-f]{{64}})$")
BLOCK_BYTES = 8 << 20  # of a file at an address, in memory at a time
PATIENCE_S = 20.0  # with a storage that is asked what is there
VERSIONS = ("ETag", "etag", "blob_id", "mtime", "LastModified", "last_modified", "created")  # in fsspec's words


@dataclass(frozen=True)
class File:
    """A file on this machine or at an address."""

    place: str
    name: str  # from the folder on that was named, or from a glob's part before any wildcard
    size: int
    version: str  # another one when the file was changed

    @classmethod
    def here(cls, path: Path, root: Path) -> "File":
        about = path.stat()
        return cls(str(path), path.relative_to(root).as_posix(), about.st_size, str(about.st_mtime_ns))

    def open(self) -> IO[bytes]:
        """To be read from anywhere in it. Raises OSError, StorageError."""
        if not is_bucket(self.place):
            return Path(self.place).open("rb")
        return cast(IO[bytes], io.BufferedReader(_Stream(self.place), BLOCK_BYTES))


class _Stream(io.RawIOBase):
    """A file at an address; what the network breaks off is asked for again."""

    def __init__(self, place: str) -> None:
        self._place = place
        files = file_system(place)
        self._file: Any = persistently(lambda: files.open(place, "rb", cache_type="none"), place)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        content = persistently(lambda: self._read(len(buffer)), self._place)
        buffer[: len(content)] = content
        return len(content)

    def readall(self) -> bytes:
        """Python's own asks for 8 KB at a time."""
        return b"".join(iter(lambda: self.read(BLOCK_BYTES) or b"", b""))

    def _read(self, size: int) -> bytes:
        try:
            return bytes(self._file.read(size))
        except OSError as error:
            if type(error).__name__ != "FileExpired":  # s3fs's, which is not imported here
                raise
            message = f"{self._place}: was replaced while it was read. Run the same command again"
            raise StorageError(message, curable=False) from error

    def close(self) -> None:
        self._file.close()
        super().close()


def find(address: str) -> list[File]:
    """The file at an address, a folder's files to the bottom, or those that match a glob, in order; hidden ones only if
    the address names such. Raises StorageError."""
    files = file_system(address)
    path = str(files._strip_protocol(address)).rstrip("/")

    def look() -> tuple[str, dict[str, Any]]:
        files.invalidate_cache()  # others write there
        if glob.has_magic(path):
            parts = path.split("/")
            fixed = next(index for index, part in enumerate(parts) if glob.has_magic(part))
            return "/".join(parts[:fixed]), files.glob(path, detail=True)
        info = files.info(path)
        if info["type"] == "file":
            return path.rpartition("/")[0], {path: info}
        return path, files.find(path, detail=True)

    try:
        root, found = persistently(look, address, patience_s=PATIENCE_S)
    except FileNotFoundError:
        return []
    listed = [
        _file(files, place, place.removeprefix(f"{root}/"), info)
        for place, info in found.items()
        if info["type"] == "file"
    ]
    if "/." not in path:
        listed = [file for file in listed if not any(part.startswith(".") for part in file.name.split("/"))]
    return sorted(listed, key=lambda file: file.name.split("/"))


def _file(files: Any, place: str, name: str, info: dict[str, Any]) -> File:
    if info.get("size") is None:
        raise StorageError(f"{place}: its server does not say how large it is", curable=False)
    version = next((info[key] for key in VERSIONS if info.get(key)), "")
    return File(files.unstrip_protocol(place), name, info["size"], str(version))


def files_in(folder: Path) -> list[File]:
    """Those directly in a folder of this machine; none if there is no such folder."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return [File.here(path, folder) for path in paths if path.is_file()]


def state_of(files: Iterable[File]) -> str:
    """BLAKE3 over the files' names, sizes and versions."""
    hasher = blake3()
    for file in files:
        hasher.update(f"{file.name}\0{file.size}\0{file.version}\n".encode())
    return hasher.hexdigest()


def digest_of(path: str) -> str | None:
    """What an address is identified by, if by its content."""
    found = _DIGEST.search(path)
    return found[1] if found else None


def selected(files: Iterable[File], wanted: Sequence[str]) -> list[File]:
    """Those directly in the folder whose names match one of the patterns."""
    return [file for file in files if "/" not in file.name and any(fnmatch(file.name, each) for each in wanted)]


def bring(address: str, wanted: Sequence[str] = ("*",)) -> Path:
    """A folder with the files of an archive, or with those of a folder that are `wanted`: complete, in this node's
    cache. Raises StorageError."""
    digest = digest_of(address)
    cache = Path(os.environ.get("BATON_CACHE") or baton_home()) / "brought"
    if digest and (cache / digest).exists():
        return cache / digest
    files = find(address.partition(DIGEST)[0]) if digest else selected(find(address), wanted)
    if not files:
        again = ", any more: submit the run again from where its files are" if digest else ""
        raise StorageError(f"{address}: nothing is there{again}", curable=False)
    key = digest or blake3(f"{address}\0{state_of(files)}".encode()).hexdigest()
    here = cache / key
    make_folder(cache)
    with (cache / f"{key}.lock").open("a") as lock:  # another process may be bringing it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if here.exists():
            return here
        for left in cache.glob(f"{key}.*.partial"):  # by killed processes: we have the lock
            shutil.rmtree(left)
        partial = made = cache / f"{key}.{uuid4().hex}.partial"
        try:
            _download(files, partial)
            if digest:
                made = _unpacked(partial / files[0].name, digest)
            elif selected(find(address), wanted) != files:
                raise StorageError(f"{address}: was changed while it was brought. Run the same command again", False)
            sync_tree(made)
            rename(made, here)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return here


def _download(files: list[File], here: Path) -> None:
    there = files[0].place.rpartition("/")[0]
    here.mkdir()
    try:
        storage.get(there, {file.name: file.size for file in files}, here)
    except FileNotFoundError as error:
        raise StorageError(f"{there}: {error}: removed while it was brought", curable=False) from error


def _unpacked(archive: Path, digest: str) -> Path:
    if blake3().update_mmap(archive).hexdigest() != digest:
        raise StorageError(f"{archive.name}: is damaged where it is: its BLAKE3 is not {digest}", curable=False)
    folder = archive.with_name("files")
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise StorageError(f"{archive.name}: a tar archive of files is needed: {error}", curable=False) from error
    return folder


def pack(files: Iterable[File], archive: Path) -> str:
    """Put files of this machine into an archive, and nothing else about them: the same files give the same bytes, whose
    digest is returned."""
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as tar:
        for file in files:
            entry = tarfile.TarInfo(file.name)
            entry.size = file.size
            with Path(file.place).open("rb") as content:
                tar.addfile(entry, content)
    return str(blake3().update_mmap(archive).hexdigest())
