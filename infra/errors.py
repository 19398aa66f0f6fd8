"""Errors that a person can act on: their base, and what a disk refuses."""

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

from infra.home import home_path

# What a disk, or the right to use it, can refuse: errors of the machine, not of the program
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DISK = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


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
        if error.errno not in DISK or (error.errno in (errno.EACCES, errno.EPERM) and not error.filename):
            raise  # without a file it is about something else: kill(2), connect(2)
        raise disk_refused(os.strerror(error.errno), error.filename, full=error.errno in FULL) from error


def disk_refused(reason: str, path: str | None, full: bool) -> DiskRefused:
    """The message: what, where, and how much room there is where Baton and Flyte write."""
    home = home_path()  # which may be what was refused
    there = next(place for place in (home, *home.parents) if place.exists())
    places = dict.fromkeys((str(there), tempfile.gettempdir()))
    free = ", ".join(f"{shutil.disk_usage(place).free / 1e9:.2f} GB are free in {place}" for place in places)
    return DiskRefused(
        f"{path or home}: {reason[0].lower()}{reason[1:]} ({free}). {'Make room' if full else 'Correct that'} and run "
        "the same command again: finished stages are kept, and a stage that was cut off continues from its last "
        "checkpoint."
    )


def move_aside(*files: Path) -> str:
    """A shell command that moves what is damaged into a folder beside it. Short, as far as it can be: the terminal's
    frame around a message breaks long lines."""
    names = [os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path) for path in files]
    aside = f"{names[0]}.{time.strftime('%Y%m%d-%H%M%S')}"
    return f"mkdir {shlex.quote(aside)} && mv {shlex.join([*names, aside])}"
