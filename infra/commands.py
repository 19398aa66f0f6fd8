"""Commands in messages, so that they work in the reader's shell as printed."""

import shlex
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def command(line: str) -> str:
    """`line`, a `python -m …` or `pyflyte …` as typed in the root of Baton's clone with its environment active.

    Unless this environment's programs are the first on PATH, the program is given with its folder. Outside of the
    clone, modules are found through PYTHONPATH and the clone's files by their full paths.
    """
    program, *arguments = line.split(" ")
    cwd, folder = Path.cwd(), Path(sys.executable).parent
    path = shutil.which(program)
    if not path or Path(path).parent.resolve() != folder.resolve():
        program = str(folder.relative_to(cwd) / program if folder.is_relative_to(cwd) else folder / program)
    if cwd != ROOT:
        arguments = [
            shlex.quote(str(ROOT / word)) if "/" in word and (ROOT / word).is_file() else word for word in arguments
        ]
        if "-m" in arguments:
            program = f"PYTHONPATH={shlex.quote(str(ROOT))} {program}"
    return " ".join([program, *arguments])
