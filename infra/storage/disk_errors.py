"""Errors of a disk that is full, read-only or failing, as messages for the user."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton.infra.errors import UserError
from baton.infra.paths import home_path
from baton.infra.pod import this_pod
from baton.infra.text import size

# Errors of the disk or of permissions, not of the program
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DISK = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)

# messages of Python, Rust (safetensors, tokenizers) and torch for a full disk
NO_SPACE = re.compile(
    r"No space left on device|Disk quota exceeded|\b(code:|os error) (27|28|122)\b"
    r"|PytorchStreamWriter failed writing|inline_container\.cc.* unexpected pos"
)


class DiskRefused(UserError):
    """A disk is full, read-only or failing."""


@contextmanager
def disk_errors_named() -> Iterator[None]:
    """Raise the body's disk errors as DiskRefused; other errors pass through."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK or (error.errno in (errno.EACCES, errno.EPERM) and not error.filename):
            raise  # without a file it comes from another call: kill(2), connect(2)
        raise disk_refused(os.strerror(error.errno), error.filename, full=error.errno in FULL) from error


def full_disk(error: BaseException) -> str | None:
    """Return the message of a full disk, an exceeded quota or a limit on a file's size, in `error` or in an exception
    that it was raised from or while handling, or None if it has another cause. Closing an archive after a failed write,
    torch raises "unexpected pos" in place of the write's error."""
    message: str | None = None
    each: BaseException | None = error
    while each:
        if isinstance(each, OSError) and each.errno in FULL:
            return str(each)
        if NO_SPACE.search(str(each)):
            message = str(each)
        each = each.__cause__ or each.__context__
    return message


def disk_refused(reason: str, path: str | None, full: bool, folder: Path | None = None) -> DiskRefused:
    """Return the error, with the free space where Baton and Flyte write. `folder`: the job's, by default the home."""
    home = folder or home_path()  # not baton_home(), which could fail itself
    existing = next(place for place in (home, *home.parents) if place.exists())
    places = dict.fromkeys((str(existing), tempfile.gettempdir()))
    free = ", ".join(f"{size(shutil.disk_usage(place).free)} are free in {place}" for place in places)
    room = "Give the stage more of pod.resources.ephemeral_storage" if this_pod() else "Make room"
    return DiskRefused(
        f"{path or home}: {reason[0].lower()}{reason[1:]} ({free}). {room if full else 'Fix that'} and run "
        "the same command again: finished stages are cached, and an interrupted one continues from its last "
        "checkpoint."
    )
