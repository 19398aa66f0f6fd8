"""Import a user's function from a folder of sources, locate errors in those sources, and be a process for that.

Standard library only, so that a process that only runs users' functions starts in 50 ms. Raises `Unusable` with a
message for the user; tasks/functions.py has the spec of such a function.
"""

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

STACKS, SOURCES = "stacks", "sources"  # in a process's folder: faulthandler's output, the users' files
_PLACE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)


class Unusable(Exception):
    """A function that cannot be loaded or called; the message says why."""


def load_function(folder: Path, module: str, attribute: str, *, in_folder: bool) -> Callable[..., Any]:
    """`attribute` of `module`, which is a file below `folder` if `in_folder`, else installed. Raises Unusable."""
    if in_folder and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise Unusable(f"importing {module} raises {described(error, folder)}") from error
    if in_folder and not _below(found, folder):
        origin = getattr(found, "__file__", None) or "Python itself"
        raise Unusable(f"the name {module} is taken by {origin}; rename the file")
    function = getattr(found, attribute, None)
    if not callable(function):
        what = "has no" if function is None else f"has {function!r:.60}, which cannot be called, as"
        raise Unusable(f"{module} {what} {attribute}")
    return function  # type: ignore[no-any-return]


def described(error: BaseException, folder: Path) -> str:
    """`ZeroDivisionError: division by zero (sums.py, line 12: return 1 / total)`: with the innermost line of a file
    below the folder, else with the innermost of all."""
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        line = (error.text or "").strip()
        return f"{type(error).__name__}: {error.msg} ({_short(error.filename, folder)}, line {error.lineno}: {line})"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)] or frames
    if not theirs:
        return message
    last = theirs[-1]
    return f"{message} ({_short(last.filename, folder)}, line {last.lineno}: {last.line})"


def stuck_at(stacks: Path, folder: Path) -> str:
    """`stuck at sums.py, line 12, in right`: where faulthandler has ended a process, preferably in a file below the
    folder. Empty if it has not."""
    main = stacks.read_text(errors="replace").rpartition("Thread ")[2] if stacks.exists() else ""  # it comes last
    frames = list(_PLACE.finditer(main))
    if not frames:
        return ""
    theirs = [frame for frame in frames if Path(frame["file"]).is_relative_to(folder)]
    frame = (theirs or frames)[0]
    file = Path(frame["file"])
    return f"stuck at {file.relative_to(folder) if theirs else file.name}, line {frame['line']}, in {frame['function']}"


def take_pipes() -> tuple[TextIO, TextIO]:
    """Take standard input and output for messages: what a function prints goes to standard error, and it reads
    nothing."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return requests, answers


def leave_project() -> None:
    """Let a user's function import its own and installed modules, not Baton's."""
    ours = str(Path(__file__).parents[1])
    sys.path[:] = [place for place in sys.path if place != ours]
    program = sys.modules["__main__"]
    program.__spec__, program.__file__ = None, None  # or processes spawned by a function would import it


def _short(file: str, folder: Path) -> str:
    path = Path(file)
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else file


def _below(module: ModuleType, folder: Path) -> bool:
    return Path(getattr(module, "__file__", None) or "/").is_relative_to(folder)
