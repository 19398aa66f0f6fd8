"""Errors that the user can act on: their base class, and disk errors."""

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

from infra.paths import home_path
from infra.pod import this_pod

# Errors of the disk or of permissions, not of the program
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
DISK = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)


class Stopped(click.ClickException):
    """The run cannot continue; the message says why and what to do. `pyflyte run` shows the message alone; any other
    exception is a bug and shows its traceback."""

    def __str__(self) -> str:
        return self.message


def sentence(error: BaseException) -> str:
    """What went wrong, for a user: the message of an error of ours, else with the kind of error."""
    return error.message if isinstance(error, Stopped) else f"{type(error).__name__}: {error}"


class DiskRefused(Stopped):
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


def disk_refused(reason: str, path: str | None, full: bool, folder: Path | None = None) -> DiskRefused:
    """The error, with the free space where Baton and Flyte write. `folder`: of the job, by default the home folder."""
    home = folder or home_path()  # not baton_home(), which could fail itself
    there = next(place for place in (home, *home.parents) if place.exists())
    places = dict.fromkeys((str(there), tempfile.gettempdir()))
    free = ", ".join(f"{shutil.disk_usage(place).free / 1e9:.2f} GB are free in {place}" for place in places)
    room = "Give the stage more of pod.resources.ephemeral_storage" if this_pod() else "Make room"
    return DiskRefused(
        f"{path or home}: {reason[0].lower()}{reason[1:]} ({free}). {room if full else 'Fix that'} and run "
        "the same command again: finished stages are cached, and an interrupted one continues from its last "
        "checkpoint."
    )


def move_aside(*files: Path) -> str:
    """A shell command that moves damaged files into a folder beside them. Kept short, because the terminal's frame
    around a message breaks long lines."""
    names = [os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path) for path in files]
    aside = f"{names[0]}.{time.strftime('%Y%m%d-%H%M%S')}"
    return f"mkdir {shlex.quote(aside)} && mv {shlex.join([*names, aside])}"
