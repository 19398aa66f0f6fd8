"""Import a user's function from a folder of sources, locate errors in these sources, and prepare a process for this.

Standard library only, so that a process that only runs users' functions starts in 50 ms. Raises `Unusable` with a
message for the user; tasks/user_code/functions.py has the spec of such a function.
"""

import ctypes
import importlib
import os
import re
import resource
import select
import signal
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from baton import SEARCH_PATH
from baton.infra.text import shown

LONGEST_LINE = 200  # characters of a line of code in a message
POLL_MS = 50  # interval at which a process waits for another
END_S = 10.0  # time limit for the end of the processes that a function has started; one can wait for a disk
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STACKS, SOURCES = "stacks", "sources"  # names in a process's folder: faulthandler's output, and the users' files
_PLACE = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)


class Unusable(Exception):
    """Raised if a function cannot be loaded or called; the message has the reason. `not_installed` is whether a module
    that it imports is missing here, and may exist elsewhere."""

    def __init__(self, message: str, not_installed: bool = False) -> None:
        super().__init__(message)
        self.not_installed = not_installed


def load_function(folder: Path, module: str, attribute: str, *, in_folder: bool) -> Callable[..., Any]:
    """Import `attribute` of `module`, which is a file below `folder` if `in_folder`, else an installed module. Raises
    Unusable."""
    if in_folder and str(folder) not in sys.path:
        _put_first(folder)
        importlib.invalidate_caches()
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        missing = isinstance(error, ModuleNotFoundError)
        raise Unusable(f"importing {module} raises {described(error, folder)}", missing) from error
    if in_folder and not _below(imported, folder):
        origin = getattr(imported, "__file__", None) or "Python itself"
        raise Unusable(f"the name {module} is taken by {origin}; rename the file")
    function = getattr(imported, attribute, None)
    if not callable(function):
        what = "has no" if function is None else f"has {function!r:.60}, which cannot be called, as"
        raise Unusable(f"{module} {what} {attribute}")
    return function  # type: ignore[no-any-return]


def _put_first(folder: Path) -> None:
    """Put a folder before all places of modules but Python's own, which its files (numbers.py) must not replace."""
    paths = sysconfig.get_paths()
    library = {paths["stdlib"], paths["platstdlib"], f"{paths['platstdlib']}/lib-dynload"}
    own = [place for place in sys.path if place in library or place.endswith(".zip")]
    sys.path[:] = [*own, str(folder), *(place for place in sys.path if place not in own)]


def forget(folder: Path) -> None:
    """Remove the modules imported from below the folder, so that modules of these names can be imported from
    another."""
    sys.path[:] = [place for place in sys.path if place != str(folder)]
    for name in [name for name, module in list(sys.modules.items()) if _below(module, folder)]:
        del sys.modules[name]


def described(error: BaseException, folder: Path) -> str:
    """Describe an error, such as `ZeroDivisionError: division by zero (sums.py, line 12: return 1 / total)`, with the
    innermost line in a file below the folder, or else the innermost of all. The text is shortened for a message or a
    log."""
    name = shown(type(error).__name__, LONGEST_LINE)
    if isinstance(error, SyntaxError) and error.filename:
        line = shown((error.text or "").strip(), LONGEST_LINE)
        return f"{name}: {shown(str(error.msg))} ({_short(error.filename, folder)}, line {error.lineno}: {line})"
    try:
        text = str(error)
    except Exception as other:
        text = f"its text raises {type(other).__name__}"
    message = f"{name}: {shown(text)}" if text else name
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)] or frames
    if not user_frames:
        return message
    last = user_frames[-1]
    return f"{message} ({_short(last.filename, folder)}, line {last.lineno}: {shown(last.line or '', LONGEST_LINE)})"


def stuck_at(stacks: Path, folder: Path) -> str:
    """Return the line at which faulthandler has ended a process, preferably in a file below the folder, such as `stuck
    at sums.py, line 12, in right`. Empty if faulthandler has not ended it."""
    main = stacks.read_text(errors="replace").rpartition("Thread ")[2] if stacks.exists() else ""  # it comes last
    frames = list(_PLACE.finditer(main))
    if not frames:
        return ""
    user_frames = [frame for frame in frames if Path(frame["file"]).is_relative_to(folder)]
    frame = (user_frames or frames)[0]
    name = Path(frame["file"]).relative_to(folder) if user_frames else Path(frame["file"]).name
    return f"stuck at {name}, line {frame['line']}, in {frame['function']}"


def end_together() -> None:
    """Fork this process, and continue in the child. The parent waits until the child ends, or until standard input,
    whose other end the owner has, is closed. It then kills the child and all processes that the child has started, and
    ends with the child's status. Processes whose parent has ended become children of this parent, whatever their
    session (prctl(2))."""
    libc = ctypes.CDLL(None)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        reason = "this kernel has no PR_SET_CHILD_SUBREAPER"
        print(f"{reason}: processes that leave their parent are not ended with it", file=sys.stderr)
    if not (worker := os.fork()):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setpgid(0, 0)  # a function may kill its group
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise the owner would not notice that the worker has closed it
    owner = select.poll()
    owner.register(0, 0)  # polls only for the end
    status = None
    while status is None and not owner.poll(POLL_MS):
        status = _reaped().get(worker)
    _end_children()
    code = os.waitstatus_to_exitcode(status or 0)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end_children() -> None:
    """Kill this process's children until there are none. The children of a killed process become children of this
    one."""
    deadline = time.monotonic() + END_S
    while children := _children():
        for child in children:
            os.kill(child, signal.SIGKILL)  # the child is not reaped yet, so its id is not reused
        if time.monotonic() > deadline:
            return
        time.sleep(0.002)
        _reaped()


def _children() -> list[int]:
    try:
        return list(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [int(process.name) for process in Path("/proc").glob("[0-9]*") if _parent(process) == os.getpid()]


def _parent(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended


def _reaped() -> dict[int, int]:
    """Return the children that have ended, and their statuses."""
    statuses = {}
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    except ChildProcessError:
        pass  # there are none
    return statuses


def reserve_pipes() -> tuple[TextIO, TextIO]:
    """Reserve standard input and output for messages. The output of a function goes to standard error, and its input is
    empty."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return requests, answers


def leave_project() -> None:
    """Let a user's function import the project's and installed modules, not Baton's."""
    sys.path[:] = [place for place in sys.path if place not in SEARCH_PATH]
    program = sys.modules["__main__"]
    program.__spec__, program.__file__ = None, None  # otherwise processes that a function spawns would import it


def _short(file: str, folder: Path) -> str:
    path = Path(file)
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else file


def _below(module: ModuleType, folder: Path) -> bool:
    return Path(getattr(module, "__file__", None) or "/").is_relative_to(folder)
