"""The base of the errors that a person can act on."""

import errno
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from infra.home import baton_home

# What a disk, or the right to use it, can refuse: nobody's bug
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


class Stopped(click.ClickException):
    """The run cannot go on, and the message says why and what to do. Under `pyflyte run` the message
    is all that is shown; every other exception is a bug and shows its traceback."""

    def __str__(self) -> str:
        return self.message


class DiskRefused(Stopped):
    """A disk is full, read-only or broken."""


@contextmanager
def disk_errors_named() -> Iterator[None]:
    """What a disk refuses in the body is raised as DiskRefused; every other error passes."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK:
            raise
        raise disk_refused(os.strerror(error.errno), error.filename) from error


def disk_refused(reason: str, path: str | None) -> DiskRefused:
    """The message: what, where, and how much room there is where Baton and Flyte write."""
    places = dict.fromkeys((str(baton_home()), tempfile.gettempdir()))
    free = ", ".join(f"{shutil.disk_usage(place).free / 1e9:.2f} GB are free in {place}" for place in places)
    return DiskRefused(
        f"{path or baton_home()}: {reason[0].lower()}{reason[1:]} ({free}). Make room and run the same command again: "
        "finished stages are kept, and a stage that was cut off continues from its last checkpoint."
    )


def move_aside(*files: Path) -> str:
    """A shell command that moves what is damaged into a folder beside it. Short, as far as it can be: the terminal's
    frame around a message breaks long lines."""
    names = [os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path) for path in files]
    aside = f"{names[0]}.{time.strftime('%Y%m%d-%H%M%S')}"
    return f"mkdir {shlex.quote(aside)} && mv {shlex.join([*names, aside])}"
