"""Errors that the user can act on."""

import os
import shlex
import time
from pathlib import Path

import click


class UserError(click.ClickException):
    """The run cannot continue; the message says why and what to do. `pyflyte run` shows the message alone; any other
    exception is a bug and shows its traceback."""

    def __str__(self) -> str:
        return self.message


def sentence(error: BaseException) -> str:
    """Describe an error for a user: the message of a UserError alone, and that of others with the type of the error."""
    return error.message if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


def move_aside(*files: Path) -> str:
    """A shell command that moves damaged files into a folder beside them. Kept short, because the terminal's frame
    around a message breaks long lines."""
    names = [os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path) for path in files]
    aside = f"{names[0]}.{time.strftime('%Y%m%d-%H%M%S')}"
    return f"mkdir {shlex.quote(aside)} && mv {shlex.join([*names, aside])}"


def absent(path: object) -> str:
    """Return the words for a path that a recipe names and that does not exist."""
    return f"{path} does not exist" + ("; variables in a recipe are not expanded" if "$" in str(path) else "")
