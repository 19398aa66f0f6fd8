"""Test, before its first use, whether a kind of sandbox is secure on this machine.

A harmless program attempts what the sandbox must prevent, and exceeds each limit by little, so that it does no damage
even where nothing is prevented.
"""

import json
import os
import secrets
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from baton.infra.sandbox.program import MIB, Limits, NoSandbox, Program
from baton.infra.sandbox.worker import Worker

BUSY_S = 300.0  # enough on a busy machine: a secure sandbox ends within seconds
LIMITS = Limits(wall_s=BUSY_S, cpu_s=10, memory_mb=192, output_kb=16, disk_mb=1, files=20)
Start = Callable[[Limits, Sequence[Path]], Worker]

# Prints the names of the attempts that succeeded
_PROBE = """
import ctypes, json, os, signal, socket, time

task = json.load(open("task.json"))
done = []

def attempt(name, function):
    try:
        if function():
            done.append(name)
    except (OSError, MemoryError, RuntimeError, KeyError):
        pass

def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        client.connect(address)
        return True

def forked(action):
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    return child

def fork_too_much():
    children = []
    try:
        for _ in range(task["processes"]):  # with this one, one too many
            children.append(forked(lambda: time.sleep(60)))
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return True

def eat(count):
    block = bytearray(count)
    block[::4096] = b"x" * len(block[::4096])
    return block

def write_many():
    for name in os.listdir("."):
        os.unlink(name)
    for number in range(task["files"] + 10):
        open(f"many{number}", "w").close()
    return True

def write_much():
    for number in range(4):
        with open(f"much{number}", "wb") as file:
            file.write(bytes(task["disk"] // 2))
    return True

attempt("read a file of the host", lambda: open(task["canary"]).read() == task["secret"])
attempt("see the environment", lambda: task["secret"] in str(dict(os.environ)))
attempt("connect to 127.0.0.1", lambda: connect(socket.AF_INET, ("127.0.0.1", task["port"])))
attempt("connect to an abstract socket", lambda: connect(socket.AF_UNIX, "\\0" + task["secret"]))
attempt("see another process", lambda: os.kill(task["pid"], 0) is None)
attempt("open the kernel's core_pattern", lambda: open("/proc/sys/kernel/core_pattern", "r+b") is not None)
attempt("write beside its folder", lambda: open(task["beside"], "w") is not None)
attempt("start more processes than the limit", fork_too_much)
attempt("use more memory than the limit", lambda: eat(task["memory"] + (64 << 20)) is not None)
attempt("make a namespace", lambda: ctypes.CDLL(None).unshare(0x10000000) == 0)
attempt("write more than the limit", write_much)
attempt("write more files than the limit", write_many)
print(json.dumps(done))
"""

# Reports to its checker, through the pipe, how many of the checker's descriptors it could open
_BESIDE = """
import os

opened = []
for number in range(16):
    try:
        opened.append(os.open(f"/proc/{os.getppid()}/fd/{number}", os.O_RDWR | os.O_NONBLOCK))
    except OSError:
        pass
os.write(4, b"%d" % len(opened))
"""
_CHECKER = "import os; os.write(1, os.read(pipes[0], 100))"

# Uses more memory than the limit together with a child, and less alone; a cgroup kills it without an error message
_TOGETHER = """
import os, time
size = %d
reader, writer = os.pipe()
if os.fork() == 0:
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])
    os.write(writer, b"x")
    time.sleep(60)
os.close(writer)
block = bytearray(size)
block[::4096] = b"x" * len(block[::4096])
print(os.read(reader, 1))
os._exit(0)
"""


def faults(start: Start, processes: int) -> str:
    """Return what a sandbox for this many processes fails to prevent; empty if it prevents all."""
    try:
        limits = replace(LIMITS, processes=processes)
        done = _attempted(start, limits) + _not_stopped(start, limits) + _checked(start, limits)
    except NoSandbox as error:
        return str(error)
    return f"a program inside it could {', '.join(done)}" if done else ""


def _attempted(start: Start, limits: Limits) -> list[str]:
    secret = secrets.token_hex(16)
    with (
        tempfile.TemporaryDirectory(prefix="baton-canary-") as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        place = Path(folder)
        place.chmod(0o777)
        (place / "canary").write_text(secret)
        (place / "canary").chmod(0o666)
        abstract.bind("\0" + secret)
        abstract.listen()
        os.environ["BATON_CANARY"] = secret
        task = {
            "canary": str(place / "canary"), "beside": str(place / "written"), "secret": secret, "pid": os.getpid(),
            "port": server.getsockname()[1], "processes": limits.processes, "memory": limits.memory_mb * MIB,
            "disk": limits.disk_mb * MIB, "files": limits.files,
        }  # fmt: skip
        try:
            with start(limits, []) as worker:
                result = worker.run(Program(_PROBE, files={"task.json": json.dumps(task).encode()}))
        finally:
            del os.environ["BATON_CANARY"]
    if result.exit_code or result.limit:
        ended = result.limit or f"exit code {result.exit_code}"
        raise NoSandbox(f"the self-test ended with {ended}: {result.stderr.decode(errors='replace')[-500:]}")
    return list(json.loads(result.stdout))


def _not_stopped(start: Start, limits: Limits) -> list[str]:
    """Return the limits that do not stop a program, among those that only a program that exceeds them can test."""
    tries = {
        "wall": ("run longer than the limit", "import time; time.sleep(20)", Limits(wall_s=0.2)),
        "cpu": ("compute longer than the limit", "while True: pass", Limits(wall_s=BUSY_S, cpu_s=1)),
        "output": ("write endlessly", "while True: print('x' * 1000)", Limits(wall_s=BUSY_S, output_kb=1)),
    }
    done = []
    for limit, (what, source, least) in tries.items():
        with start(least, []) as worker:
            if worker.run(Program(source)).limit != limit:
                done.append(what)
    with start(limits, []) as worker:
        if worker.run(Program(_TOGETHER % (limits.memory_mb * MIB * 6 // 10))).stdout == b"b'x'\n":
            done.append("use more memory than the limit with a child")
    return done


def _checked(start: Start, limits: Limits) -> list[str]:
    """Return what a program can do to its checker, apart from killing it."""
    with start(limits, []) as worker:
        result = worker.run(Program(_BESIDE, checker=compile(_CHECKER, "checker.py", "exec")))
    return [] if result.stdout == b"0" else ["open the files of the process that checks it"]
