"""The first process of a sandbox: it waits for a program on standard input, and runs it with lower limits.

It is passed to `python -c` as text and imports nothing of Baton. The program comes marshalled, after its length in 8
bytes; what follows is the program's own standard input. When the first process of a PID namespace ends, the kernel
kills all others, so nothing that the program started outlives it.
"""

import marshal
import os
import resource
import site
import sys
import types


def take(count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:  # the pool was closed
            os._exit(0)
        data += part
    return data


os.write(1, b"\n")  # ready
program = marshal.loads(take(int.from_bytes(take(8), "little")))
for path, data in program["files"].items():
    if os.path.dirname(path):  # noqa: PTH120 - pathlib takes milliseconds to import
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(data)
if program["filter"]:  # in no PID namespace, and so with no child
    import ctypes

    class Filter(ctypes.Structure):
        """struct sock_fprog"""

        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    steps = Filter(len(program["filter"]) // 8, program["filter"])
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(steps)):  # no_new_privs, seccomp
        os._exit(125)
elif child := os.fork():
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)
for name, (soft, hard) in program["limits"].items():
    limit = getattr(resource, name)
    most = resource.getrlimit(limit)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(limit, (soft, hard))
if program["argv"]:
    try:
        os.execvp(program["argv"][0], program["argv"])
    except OSError as error:
        sys.exit(f"{program['argv'][0]}: {error.strerror}")
site.setquit()  # exit(), which -S leaves out
sys.argv[:] = ["main.py"]
sys.path[:] = [os.getcwd(), *sys.path, *program["path"]]  # noqa: PTH109
main = sys.modules["__main__"] = types.ModuleType("__main__")
exec(compile(program["source"], "main.py", "exec"), main.__dict__)
