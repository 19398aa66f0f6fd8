"""The storage that stages share: a folder, or a bucket through fsspec.

File systems and credentials come from Flyte (`file_access`, FLYTE_AWS_…). Its `put_data` and `get_data` are not used:
they hold up to 12 GB in memory (128 files of up to 100 MB at once), show no progress, and restart a whole directory if
one file fails.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from baton.infra.errors import UserError
from baton.infra.paths import baton_home
from baton.infra.pod import this_pod
from baton.infra.progress import say
from baton.infra.storage.durable import make_folder, replacement
from baton.infra.text import clause, size

T = TypeVar("T")

BUCKETS = ("s3", "gs", "az", "abfs")  # protocols whose addresses begin with a bucket
FILES = 4  # transferred at once
PARTS = 4  # of a large file, transferred at once
PART_BYTES = 16 << 20  # so at most 256 MB of memory
MOST_PARTS = 10_000  # of one file, on S3
PATIENCE_S = 180.0  # how long one file, or one query, is retried
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0  # between retries
REPORT_AFTER_S, REPORT_EVERY_S = 2.0, 15.0  # when a transfer's progress is printed
# Errors of the local disk and of the arguments, which a retry would not fix
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
# Exceptions of botocore, google-auth and azure-core, which are not imported here
_NO_CREDENTIALS = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "ClientAuthenticationError",
}
# HTTP statuses of refused requests. Those in the second row may be temporary; 409 is the answer to concurrent writers
_REFUSED_STATUS = (*range(400, 500), 501)
_NOT_REFUSED = (408, 409, 425, 429)
# S3's error codes, with one of these statuses, for disturbed transfers, wrong clocks and rate limits
_DISTURBED = {
    *("RequestTimeout", "IncompleteBody", "BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch"),
    *("RequestTimeTooSkewed", "RequestExpired", "SlowDown", "Throttling", "ThrottlingException", "OperationAborted"),
    *("RequestLimitExceeded", "TooManyRequests", "BandwidthLimitExceeded"),
}
CREDENTIALS = (
    "Set FLYTE_AWS_ACCESS_KEY_ID and FLYTE_AWS_SECRET_ACCESS_KEY (and FLYTE_AWS_ENDPOINT), FLYTE_AZURE_…, or the "
    "variables of the cloud's own library (AWS_…, GOOGLE_APPLICATION_CREDENTIALS, AZURE_…)"
)
_FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, TypeError, ValueError, AttributeError)


class StorageError(UserError):
    """The storage can't be used. `curable`: a retry may help."""

    def __init__(self, message: str, curable: bool) -> None:
        super().__init__(message)
        self.curable = curable

    def __reduce__(self) -> tuple[type["StorageError"], tuple[str, bool]]:
        """Let a worker process pass the error to its parent."""
        return type(self), (self.message, self.curable)


def is_bucket(place: str) -> bool:
    """Return whether a place is an address (s3://…, gs://…) and not a folder."""
    return "://" in place


def storage_of(named: str | None) -> str:
    """Return the storage of a placed stage, or of any stage in a pod: as `named` by a placement, else BATON_STORAGE,
    else in a pod a folder beside the raw data of all executions, else Baton's home."""
    place = named or os.environ.get("BATON_STORAGE") or _beside_raw_data() or str(baton_home())
    return place.rstrip("/") if is_bucket(place) else str(Path(place).expanduser().absolute())


def _beside_raw_data() -> str | None:
    """Return a folder beside the raw data of all executions, or None outside a pod. A pod's own raw data is in
    PREFIX/<two letters>/<pod>."""
    if this_pod() is None:
        return None
    return str(_access().raw_output_prefix).rstrip("/").rsplit("/", 2)[0] + "/baton"


def sizes(place: str) -> dict[str, int]:
    """Return the sizes in bytes of all files under a place, by relative path. Raises StorageError."""
    files = file_system(place)
    root = str(files._strip_protocol(place)).rstrip("/") + "/"

    def look() -> dict[str, Any]:
        files.invalidate_cache()  # other processes write there too
        return dict(files.find(place, detail=True))

    try:
        infos = with_retries(look, place)
    except FileNotFoundError:
        return {}
    return {path.removeprefix(root): info["size"] for path, info in infos.items() if info["type"] == "file"}


def check_bucket(address: str) -> None:
    """Raise StorageError if an address's bucket does not exist."""
    protocol, _, rest = address.partition("://")
    bucket = rest.partition("/")[0]
    if protocol not in BUCKETS:
        return
    files = file_system(address)
    try:
        with_retries(lambda: files.ls(f"{protocol}://{bucket}", refresh=True), address)
    except FileNotFoundError as error:
        message = f"there is no bucket {bucket}: fix its name, or the storage's address (FLYTE_AWS_ENDPOINT for S3)"
        raise StorageError(f"{address}: {message}", curable=False) from error
    except StorageError:
        return  # not allowed to list all of it, for example: that says nothing about its existence


def read(file: str) -> bytes:
    """Read a small file. Raises FileNotFoundError, StorageError."""
    files = file_system(file)
    return bytes(with_retries(lambda: files.cat_file(file), file))


def write(file: str, content: bytes) -> None:
    """Replace a small file atomically. Raises StorageError."""
    files = file_system(file)
    if not _is_folder(files):
        with _missing_bucket_named(file):
            with_retries(lambda: files.pipe_file(file, content), file)
        return
    path = _path(files, file)
    make_folder(path.parent)
    with replacement(path) as new:
        new.write_bytes(content)


def delete(place: str, names: Iterable[str]) -> None:
    """Delete files under a place, in this order. Raises StorageError."""
    files = file_system(place)

    def remove(file: str) -> None:
        with suppress(FileNotFoundError):  # another process was faster
            files.rm_file(file)

    removed = list(names)
    for name in removed:
        with_retries(partial(remove, f"{place}/{name}"), place)
    if _is_folder(files):  # a bucket has no empty ones
        for folder in (folder for name in removed for folder in Path(name).parents[:-1]):
            with suppress(OSError):
                _path(files, f"{place}/{folder}").rmdir()


def put(folder: Path, names: Iterable[str], place: str, stop: threading.Event | None = None) -> None:
    """Upload files of a folder, several at once and each atomically; returns when all are uploaded or `stop` is set.
    Raises StorageError.

    Corruption in transit is detected by S3, by the checksums that botocore sends, and by every reader, by the
    digest."""
    files = file_system(place)
    file_sizes = {name: (folder / name).stat().st_size for name in names}
    with _missing_bucket_named(place):
        _transfer(
            lambda name, counter: _put_file(files, folder / name, f"{place}/{name}", counter),
            file_sizes,
            f"to {place}",
            stop,
        )


def get(place: str, file_sizes: dict[str, int], folder: Path) -> None:
    """Download files (by name, with their sizes), several at once. Raises FileNotFoundError, StorageError."""
    files = file_system(place)
    _transfer(
        lambda name, counter: _get_file(files, f"{place}/{name}", folder / name, counter),
        file_sizes,
        f"from {place}",
    )


@contextmanager
def _missing_bucket_named(place: str) -> Iterator[None]:
    """For writes: raise StorageError if the bucket does not exist."""
    try:
        yield
    except FileNotFoundError as error:
        fix = "Create the bucket, or set another one in BATON_STORAGE"
        raise StorageError(f"{place}: {clause(error)}. {fix}", False) from error


class _FileProgress:
    """Progress of one file; fsspec calls it for each part, from its own thread."""

    def __init__(self, add: Callable[[int], None]) -> None:
        self._add = add
        self.done = 0

    def set_size(self, size: int | None) -> None:
        """The size is already known."""

    def relative_update(self, by: int = 1) -> None:
        self.done += by
        self._add(by)

    def absolute_update(self, value: int) -> None:
        self.relative_update(value - self.done)


class _Progress:
    """Prints progress lines for a transfer that takes a while, and one at its end."""

    def __init__(self, total: int, where: str) -> None:
        self.total, self.where = total, where
        self.began = time.monotonic()
        self.reported = self.began + REPORT_AFTER_S - REPORT_EVERY_S
        self.done = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.done += size
            if not self.total or time.monotonic() - self.reported < REPORT_EVERY_S:
                return
            self.reported = time.monotonic()
        self._say()

    def end(self) -> None:
        if self.total and time.monotonic() - self.began > REPORT_AFTER_S:
            self._say()

    def _say(self) -> None:
        seconds = time.monotonic() - self.began
        speed = f"{size(self.done / seconds)}/s" if self.done else "nothing has arrived yet"
        say(f"{size(self.done)} of {size(self.total)} {self.where}, {seconds:.0f} s, {speed}")


def _transfer(
    move: Callable[[str, _FileProgress], None], sizes: dict[str, int], where: str, stop: threading.Event | None = None
) -> None:
    """Transfer each file, several at once, and print progress."""
    progress = _Progress(sum(sizes.values()), where)

    def transfer_with_retries(name: str) -> None:
        def once() -> None:
            counter = _FileProgress(progress.add)
            try:
                move(name, counter)
            except BaseException:
                counter.absolute_update(0)
                raise
            counter.absolute_update(expected)

        expected = sizes[name]
        if stop is None or not stop.is_set():
            with_retries(once, f"{where.partition(' ')[2]}/{name}", stop)

    pool = ThreadPoolExecutor(FILES, thread_name_prefix="storage")
    try:
        # large ones first, so that the last to start is short
        for moved in [
            pool.submit(transfer_with_retries, name) for name in sorted(sizes, key=lambda name: -sizes[name])
        ]:
            moved.result()
    finally:
        pool.shutdown(cancel_futures=True)
    progress.end()


def _put_file(files: Any, source: Path, place: str, counter: _FileProgress) -> None:
    if not _is_folder(files):
        files.put_file(str(source), place, callback=counter, **_parts(files, source.stat().st_size))
        return
    path = _path(files, place)
    make_folder(path.parent)
    with replacement(path) as new:
        shutil.copyfile(source, new)


def _get_file(files: Any, place: str, target: Path, counter: _FileProgress) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if _is_folder(files):
        shutil.copyfile(_path(files, place), target)
    else:
        files.get_file(place, str(target), callback=counter, **_parts(files, 0))


def _parts(files: Any, size: int) -> dict[str, int]:
    """Options for a large file's parts, if the file system has any."""
    protocol = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
    if "s3" in protocol:
        return {"chunksize": max(PART_BYTES, -(-size // MOST_PARTS)), "max_concurrency": PARTS}
    return {"chunksize": PART_BYTES} if "gs" in protocol and size else {}


def with_retries(
    work: Callable[[], T], place: str, stop: threading.Event | None = None, patience_s: float | None = None
) -> T:
    """Call `work` until it succeeds, the patience is exhausted, or `stop` is set. Raises FileNotFoundError,
    StorageError; errors of the local disk pass through."""
    began, wait = time.monotonic(), FIRST_WAIT_S
    while True:
        try:
            return work()
        except (*_FINAL, StorageError):
            raise
        except Exception as error:  # each file system raises a different error for an unreachable server
            answer = _answer(error)
            if (answer is None and isinstance(error, PermissionError)) or (answer and answer.is_forbidden):
                message = answer.message if answer else clause(error)
                raise StorageError(
                    f"{place}: {message}. This process's credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                    "FLYTE_AWS_…, or its service account) must allow listing and reading there, and writing and "
                    "deleting in BATON_STORAGE",
                    curable=False,
                ) from error
            if answer is not None and answer.is_refusal:
                of_s3 = " and the store's settings (for S3, FLYTE_AWS_ENDPOINT and AWS_DEFAULT_REGION)"
                fix = f"Check the address{of_s3 if is_bucket(place) else ''}"
                raise StorageError(
                    f"{place}: the storage refuses the request: {answer.message}. {fix}", False
                ) from error
            if answer is None and isinstance(error, OSError) and error.errno in _REFUSED:
                raise
            if type(error).__name__ in _NO_CREDENTIALS:
                reason = f"no credentials for it here: {clause(error)}"
                raise StorageError(f"{place}: {reason}. {CREDENTIALS}", False) from error
            tried = time.monotonic() - began
            if tried + wait > (patience_s or PATIENCE_S) or (stop is not None and stop.is_set()):
                of_s3 = " (for S3, FLYTE_AWS_ENDPOINT)" if is_bucket(place) else ""
                fix = f"Check that it can be reached from here{of_s3}, and run the command again"
                raise StorageError(f"{place}: tried for {tried:.0f} s: {clause(error)}. {fix}", curable=True) from error
        (stop.wait if stop else time.sleep)(wait * random.uniform(0.5, 1))
        wait = min(2 * wait, LONGEST_WAIT_S)


@dataclass(frozen=True)
class _Answer:
    """A store's answer to a request that failed."""

    status: int  # the HTTP status
    message: str
    is_temporary: bool  # its code says that the transfer was disturbed, or that a rate limit was reached

    @property
    def is_forbidden(self) -> bool:
        return self.is_refusal and self.status in (401, 403)

    @property
    def is_refusal(self) -> bool:
        """True if the answer to a retry would be the same."""
        is_final = self.status in _REFUSED_STATUS and self.status not in _NOT_REFUSED
        return is_final and not self.is_temporary


def _answer(error: BaseException | None) -> _Answer | None:
    """Return the answer behind an error of botocore, gcsfs, azure-core, aiohttp or huggingface_hub, if there is one."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and "Error" in response:  # botocore's
            code, message = (str(response["Error"].get(name, "")) for name in ("Code", "Message"))
            status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            text = ": ".join(dict.fromkeys(filter(None, (code, clause(message)))))
            return _Answer(status, f"{text} (HTTP {status})", any(name in f"{code} {message}" for name in _DISTURBED))
        if type(error).__module__ == "aiohttp.http_exceptions":  # a cut connection: aiohttp's code, 400, is its own
            return None
        named = (getattr(error, name, None) for name in ("status_code", "status", "code"))
        for found in (getattr(response, "status_code", None), *named):
            if isinstance(found, int) and 400 <= found < 600:
                return _Answer(found, f"{clause(error)} (HTTP {found})", False)
        error = error.__cause__
    return None


def _is_folder(files: Any) -> bool:
    return "file" in files.protocol


def _path(files: Any, place: str) -> Path:
    return Path(files._strip_protocol(place))


def file_system(place: str) -> Any:
    """Return fsspec's file system, with Flyte's credentials or its own. Raises StorageError."""
    protocol = place.partition("://")[0] if is_bucket(place) else "file"
    try:  # az is an alias of abfs, for which Flyte has credentials
        return _access().get_filesystem("abfs" if protocol == "az" else protocol, path=place)
    except (ImportError, ValueError) as error:  # missing package, unknown name, credentials
        fix = "The images read s3, gs, az and hf; for another, install its package where the stages run"
        message = f"{place}: fsspec has no access to {protocol}://: {clause(error)}. {fix}"
        raise StorageError(message, curable=False) from error


def _access() -> Any:
    """Return Flyte's file access; imported late, since recipes are checked without it."""
    from flytekit import FlyteContextManager

    return FlyteContextManager.current_context().file_access
