"""Import a user's function from a folder of sources, and locate errors in those sources.

Standard library only, so that a process that only runs users' functions starts in 50 ms. Raises `Unusable` with a
message for the user; tasks/functions.py has the spec of such a function.
"""

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


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


def _short(file: str, folder: Path) -> str:
    path = Path(file)
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else file


def _below(module: ModuleType, folder: Path) -> bool:
    return Path(getattr(module, "__file__", None) or "/").is_relative_to(folder)
