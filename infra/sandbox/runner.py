"""The first process of a sandbox, which waits for a program on standard input and runs it with lower limits.

It is passed to `python -c` as text and imports nothing of Baton. The program comes marshalled, after its length in 8
bytes; what follows is the program's own standard input, or that of its checker. When the first process of a PID
namespace ends, the kernel kills all others, so nothing that the program started outlives it.

A checker runs in this first process, the program in a child that shares only two pipes with it: the child is forked
before the checker's input is read, and the kernel lets no process of a PID namespace kill or stop the first one.
"""

import marshal
import os
import resource
import signal
import site
import sys
import time
import types

ENDS_S = 0.2  # how long to wait for the exit code of a program that has closed its pipe


def take(count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:  # the pool was closed
            os._exit(0)
        data += part
    return data


def ended(child: int, wait_s: float | None = None) -> int | None:
    """Return the exit code of a child, as in a shell; None if it still runs after `wait_s`."""
    deadline = time.monotonic() + (wait_s or 0)
    while not (status := os.waitpid(child, 0 if wait_s is None else os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status[1])
    return code if code >= 0 else 128 - code


def refuse_calls(filter: bytes) -> None:
    """Install a seccomp filter in this process."""
    import ctypes

    class Filter(ctypes.Structure):
        """struct sock_fprog"""

        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    steps = Filter(len(filter) // 8, filter)
    failed = libc.prctl(38, 1, 0, 0, 0)  # no_new_privs
    if checker and not child:
        failed |= libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its checker
        # without a Landlock domain below its checker's, it could open the checker's descriptors in /proc; every domain
        # has to forbid something, and this one forbids making a device
        ruleset = libc.syscall(444, ctypes.byref(ctypes.c_uint64(1 << 6)), 8, 0)  # landlock_create_ruleset
        failed |= ruleset < 0 or libc.syscall(446, ruleset, 0)  # landlock_restrict_self
        os.close(ruleset)
    if failed or libc.prctl(22, 2, ctypes.byref(steps)):  # seccomp
        os._exit(125)


os.write(1, b"\n")  # ready
program = marshal.loads(take(int.from_bytes(take(8), "little")))
for path, data in program["files"].items():
    if os.path.dirname(path):  # noqa: PTH120 - pathlib takes milliseconds to import
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(data)
for name, code in program["modules"].items():  # before the fork: both processes use them
    sys.modules[name] = types.ModuleType(name)
    exec(code, sys.modules[name].__dict__)
checker, child = program.pop("checker"), 0
if checker:
    (from_checker, to_program), (from_program, to_checker) = os.pipe(), os.pipe()
    if child := os.fork():
        os.close(from_checker)
        os.close(to_checker)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's handler would let the program interrupt it
    else:  # 0: nothing; 1 and 2: standard error; 3 and 4: the pipes
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, place in ((nothing, 0), (2, 1), (os.dup(from_checker), 3), (os.dup(to_checker), 4)):
            os.dup2(number, place)
        os.closerange(5, 1 << 16)
elif not program["filter"] and (child := os.fork()):
    os._exit(ended(child) or 0)
if program["filter"]:  # not in a PID namespace, so it has no child
    refuse_calls(program["filter"])
for name, (soft, hard) in program["limits"].items():
    limit = getattr(resource, name)
    most = resource.getrlimit(limit)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(limit, (soft, hard))
if checker and child:
    sys.path[:] = [*sys.path, *program["path"]]  # without the folder that the program writes to
    beside = {"__name__": "__main__", "pipes": (from_program, to_program), "gone": False}
    exec(checker, beside)
    if not beside["gone"] or (code := ended(child, ENDS_S)) is None:
        os.kill(child, signal.SIGKILL)
        ended(child)
        code = 0
    os._exit(code)
if program["argv"]:
    try:
        os.execvp(program["argv"][0], program["argv"])
    except OSError as error:
        sys.exit(f"{program['argv'][0]}: {error.strerror}")
site.setquit()  # exit(), which -S leaves out
sys.argv[:] = ["main.py"]
sys.path[:] = [os.getcwd(), *sys.path, *program["path"]]  # noqa: PTH109
main = sys.modules["__main__"] = types.ModuleType("__main__")
source = program["source"]
exec(compile(source, "main.py", "exec") if isinstance(source, str) else source, main.__dict__)
