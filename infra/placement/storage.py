"""The storage that stages share: a folder, or a bucket through fsspec.

Flyte says which file system an address has and with which credentials (`file_access`, FLYTE_AWS_…). Its own `put_data`
and `get_data` are not used: they hold up to 12 GB in memory (128 files of up to 100 MB at once), show no progress, and
begin a whole directory again where one file failed.
"""

import errno
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from infra.durable import make_folder, rename, sync
from infra.errors import Stopped
from infra.home import baton_home
from infra.pod import this_pod
from infra.progress import say

T = TypeVar("T")

BUCKET = "BATON_BUCKET"  # on a job's machine: the bucket that Baton's home is
FILES = 4  # that are on their way at once, and of a large one
PARTS = 4  # so many parts, each of
PART_BYTES = 16 << 20  # : at most 256 MB of memory
MOST_PARTS = 10_000  # of one file, on S3
PATIENCE_S = 180.0  # with one file, or one question
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0  # between two tries
TOLD_AFTER_S, TOLD_EVERY_S = 2.0, 15.0  # how far a transfer is
# What no further try cures: of the disk here, and mistakes
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
# Of botocore, google-auth and azure-core, which are not imported here
_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "ClientAuthenticationError",
}
CREDENTIALS = (
    "Set FLYTE_AWS_ACCESS_KEY_ID and FLYTE_AWS_SECRET_ACCESS_KEY (and FLYTE_AWS_ENDPOINT), FLYTE_AZURE_…, or what the "
    "cloud's own library takes (AWS_…, GOOGLE_APPLICATION_CREDENTIALS, AZURE_…)"
)
_FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, TypeError, ValueError, AttributeError)


class StorageError(Stopped):
    """The storage cannot be used. `curable`: perhaps later it can."""

    def __init__(self, message: str, curable: bool) -> None:
        super().__init__(message)
        self.curable = curable


def is_bucket(place: str) -> bool:
    """Whether a place is an address (s3://…, gs://…) and not a folder."""
    return "://" in place


def storage_of(named: str | None) -> str:
    """Where the files of a placed stage, and of all stages in a pod, are kept: `named` by a placement, BATON_STORAGE,
    in a pod a folder beside the raw data of all executions, or Baton's home."""
    place = named or os.environ.get("BATON_STORAGE") or _beside_raw_data() or str(baton_home())
    return place.rstrip("/") if is_bucket(place) else str(Path(place).expanduser().absolute())


def _beside_raw_data() -> str | None:
    """A pod's own raw data is in PREFIX/<two letters>/<pod>."""
    if this_pod() is None:
        return None
    return str(_access().raw_output_prefix).rstrip("/").rsplit("/", 2)[0] + "/baton"


def address_of(directory: str) -> str:
    """Where others find a directory of Baton's home: on a job's machine that is a bucket, if one is mounted there."""
    bucket = os.environ.get(BUCKET)
    return directory.replace(str(baton_home()), bucket, 1) if bucket else directory


def sizes(there: str) -> dict[str, int]:
    """Every file under a place, by its path from there, and its bytes. Raises StorageError."""
    files = file_system(there)
    root = str(files._strip_protocol(there)).rstrip("/") + "/"

    def look() -> dict[str, Any]:
        files.invalidate_cache()  # others write there too
        return dict(files.find(there, detail=True))

    try:
        found = persistently(look, there)
    except FileNotFoundError:
        return {}
    return {path.removeprefix(root): info["size"] for path, info in found.items() if info["type"] == "file"}


def read(file: str) -> bytes:
    """A small file. Raises FileNotFoundError, StorageError."""
    files = file_system(file)
    return bytes(persistently(lambda: files.cat_file(file), file))


def write(file: str, content: bytes) -> None:
    """Replace a small file at once: a reader finds the old content or the new. Raises StorageError."""
    files = file_system(file)
    if not _is_folder(files):
        with _no_such_place_named(file):
            persistently(lambda: files.pipe_file(file, content), file)
        return
    path = _path(files, file)
    make_folder(path.parent)
    unfinished = _unfinished(path)
    unfinished.write_bytes(content)
    sync(unfinished)
    rename(unfinished, path)


def delete(there: str, names: Iterable[str]) -> None:
    """Files under a place, in this order. Raises StorageError."""
    files = file_system(there)

    def remove(file: str) -> None:
        with suppress(FileNotFoundError):  # someone else was first
            files.rm_file(file)

    removed = list(names)
    for name in removed:
        persistently(partial(remove, f"{there}/{name}"), there)
    if _is_folder(files):  # a bucket has no empty ones
        for folder in (folder for name in removed for folder in Path(name).parents[:-1]):
            with suppress(OSError):
                _path(files, f"{there}/{folder}").rmdir()


def put(folder: Path, names: Iterable[str], there: str, stop: threading.Event | None = None) -> None:
    """Send files of a folder, several at once. Each is there as a whole or not at all. When this returns they are
    there, unless `stop` was set. Raises StorageError.

    What the network does to them is seen by S3 itself, against the checksums that botocore sends; and by every reader,
    against the digest."""
    files = file_system(there)
    wanted = {name: (folder / name).stat().st_size for name in names}
    with _no_such_place_named(there):
        _transfer(
            lambda name, told: _put_file(files, folder / name, f"{there}/{name}", told), wanted, f"to {there}", stop
        )


def get(there: str, wanted: dict[str, int], folder: Path) -> None:
    """Bring files, by their sizes, several at once. Raises FileNotFoundError, StorageError."""
    files = file_system(there)
    _transfer(lambda name, told: _get_file(files, f"{there}/{name}", folder / name, told), wanted, f"from {there}")


@contextmanager
def _no_such_place_named(place: str) -> Iterator[None]:
    """Where something is written. Raises StorageError."""
    try:
        yield
    except FileNotFoundError as error:
        raise StorageError(f"{place}: {error}. Make the bucket, or name another one in BATON_STORAGE", False) from error


class _Told:
    """How much of a transfer is done; fsspec calls it, from its own thread, for the parts of one file."""

    def __init__(self, add: Callable[[int], None]) -> None:
        self._add = add
        self.done = 0

    def set_size(self, size: int | None) -> None:
        """Known already."""

    def relative_update(self, by: int = 1) -> None:
        self.done += by
        self._add(by)

    def absolute_update(self, value: int) -> None:
        self.relative_update(value - self.done)


class _Progress:
    """A line now and then for a transfer that takes a while, and one at its end."""

    def __init__(self, total: int, where: str) -> None:
        self.total, self.where = total, where
        self.began = time.monotonic()
        self.told = self.began + TOLD_AFTER_S - TOLD_EVERY_S
        self.done = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.done += size
            if time.monotonic() - self.told < TOLD_EVERY_S:
                return
            self.told = time.monotonic()
        self._say()

    def end(self) -> None:
        if time.monotonic() - self.began > TOLD_AFTER_S:
            self._say()

    def _say(self) -> None:
        seconds = time.monotonic() - self.began
        speed = self.done / seconds / 1e6
        say(f"{self.done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB {self.where}, {seconds:.0f} s, {speed:,.0f} MB/s")


def _transfer(
    move: Callable[[str, _Told], None], wanted: dict[str, int], where: str, stop: threading.Event | None = None
) -> None:
    """Move each file, several at once, and tell how far it is."""
    progress = _Progress(sum(wanted.values()), where)

    def moved_in_the_end(name: str) -> None:
        def once() -> None:
            told = _Told(progress.add)
            try:
                move(name, told)
            except BaseException:
                told.absolute_update(0)
                raise
            told.absolute_update(size)

        size = wanted[name]
        if stop is None or not stop.is_set():
            persistently(once, f"{where.partition(' ')[2]}/{name}", stop)

    pool = ThreadPoolExecutor(FILES, thread_name_prefix="storage")
    try:
        # large ones first: the last to begin is then a short one
        for moved in [pool.submit(moved_in_the_end, name) for name in sorted(wanted, key=lambda name: -wanted[name])]:
            moved.result()
    finally:
        pool.shutdown(cancel_futures=True)
    progress.end()


def _put_file(files: Any, source: Path, there: str, told: _Told) -> None:
    if not _is_folder(files):
        files.put_file(str(source), there, callback=told, **_parts(files, source.stat().st_size))
        return
    path = _path(files, there)
    make_folder(path.parent)
    unfinished = _unfinished(path)
    shutil.copyfile(source, unfinished)
    sync(unfinished)
    rename(unfinished, path)


def _get_file(files: Any, there: str, here: Path, told: _Told) -> None:
    here.parent.mkdir(parents=True, exist_ok=True)
    if _is_folder(files):
        shutil.copyfile(_path(files, there), here)
    else:
        files.get_file(there, str(here), callback=told, **_parts(files, 0))


def _parts(files: Any, size: int) -> dict[str, int]:
    """How a large file is cut, for those file systems that can be told."""
    protocol = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
    if "s3" in protocol:
        return {"chunksize": max(PART_BYTES, -(-size // MOST_PARTS)), "max_concurrency": PARTS}
    return {"chunksize": PART_BYTES} if "gs" in protocol and size else {}


def persistently(
    work: Callable[[], T], place: str, stop: threading.Event | None = None, patience_s: float | None = None
) -> T:
    """Try until it works, the patience is over, or `stop` is set. Raises FileNotFoundError, StorageError; what a disk
    here refuses passes."""
    began, wait = time.monotonic(), FIRST_WAIT_S
    while True:
        try:
            return work()
        except (*_FINAL, StorageError):
            raise
        except PermissionError as error:
            raise StorageError(
                f"{place}: {error}. The credentials of this process (FLYTE_AWS_…, or its service account) must allow "
                "to list and read there, and to write and delete in BATON_STORAGE",
                curable=False,
            ) from error
        except Exception as error:  # each file system has its own for a server that is away
            if isinstance(error, OSError) and error.errno in _REFUSED:
                raise
            if type(error).__name__ in _NO_CREDENTIALS:
                raise StorageError(f"{place}: no credentials for it here: {error}. {CREDENTIALS}", False) from error
            tried = time.monotonic() - began
            if tried + wait > (patience_s or PATIENCE_S) or (stop is not None and stop.is_set()):
                raise StorageError(f"{place}: tried for {tried:.0f} s: {error}", curable=True) from error
        time.sleep(wait * random.uniform(0.5, 1))
        wait = min(2 * wait, LONGEST_WAIT_S)


def _is_folder(files: Any) -> bool:
    return "file" in files.protocol


def _path(files: Any, place: str) -> Path:
    return Path(files._strip_protocol(place))


def _unfinished(path: Path) -> Path:
    """A name that no other process has, in whichever container it is."""
    return path.with_name(f"{path.name}.{uuid4().hex}.partial")


def file_system(place: str) -> Any:
    """fsspec's file system, with Flyte's credentials, or else its own. Raises StorageError."""
    protocol = place.partition("://")[0] if is_bucket(place) else "file"
    try:  # az is another name of abfs, for which Flyte has credentials
        return _access().get_filesystem("abfs" if protocol == "az" else protocol, path=place)
    except (ImportError, ValueError) as error:  # its package, its name, its credentials
        raise StorageError(f"{place}: fsspec has no access to {protocol}://: {error}", curable=False) from error


def _access() -> Any:
    """Flyte's access to files; imported when it is needed, since recipes are checked without it."""
    from flytekit import FlyteContextManager

    return FlyteContextManager.current_context().file_access
