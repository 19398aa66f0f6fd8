"""Commands in messages, so that they work in the reader's shell as printed."""

import shlex
import shutil
import sys
from pathlib import Path

from baton import HERE, IMPORTED_FROM


def command(line: str) -> str:
    """Return `line`, a `baton …` or a `pyflyte …` as typed in the root of Baton's clone with its environment active, as
    it works in this shell.

    Unless this environment's programs are the first on PATH, the program is given with its folder. Outside of the
    clone, the clone's files have their full paths.
    """
    program, *arguments = line.split(" ")
    cwd, folder = Path.cwd(), Path(sys.executable).parent
    path = shutil.which(program)
    if not path or Path(path).parent.resolve() != folder.resolve():
        program = str(folder.relative_to(cwd) / program if folder.is_relative_to(cwd) else folder / program)
    if cwd != IMPORTED_FROM:
        arguments = [
            shlex.quote(str((HERE / word).resolve())) if "/" in word and (HERE / word).is_file() else word
            for word in arguments
        ]
    return " ".join([program, *arguments])
