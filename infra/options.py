"""Types of command line options that also check what click's types let through."""

import math
import os
from pathlib import Path
from typing import Any

import click


class Number(click.FloatRange):
    """A finite number. click's range has no answer to NaN, which no comparison excludes, and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        return number if math.isfinite(number) else self.fail(f"{value!r} is not a finite number.", param, ctx)


class Folder(click.Path):
    """An existing folder. click's `file_okay=False` refuses regular files only, not /dev/null or a pipe."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        return path if path.is_dir() else self.fail(f"{str(path)!r} is not a folder.", param, ctx)


class NewFile(click.Path):
    """A file that is written when the work is done. Writing is tried before, and a file made by that is removed."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not os.access(path.parent, os.W_OK) or not path.parent.is_dir():
            self.fail(f"{str(path.parent)!r} is not a folder that can be written to.", param, ctx)
        try:
            existed = os.path.lexists(path)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666))  # a pipe would wait for a reader
        except OSError as error:
            self.fail(f"{str(path)!r} cannot be written: {(error.strerror or str(error)).lower()}.", param, ctx)
        if not existed:
            path.unlink()
        return path
