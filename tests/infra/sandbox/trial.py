"""`python -m tests.infra.sandbox.trial KIND FOLDER` runs every attack in a sandbox of one kind, as the current user,
and prints the successful ones as a JSON object: attack -> what it did.

The host offers possible targets: a secret in a file that the sandboxed user owns, in the environment and in an open
descriptor; sockets; a process of that user. Its state is compared before and after.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from baton.infra.sandbox.bubblewrap import NOBODY
from baton.infra.sandbox.program import Limits, Program, Result
from baton.infra.sandbox.sandbox import Sandbox
from tests.infra.sandbox.attacks import ATTACKS, MEETS, PRELUDE


def limits(kind: str) -> Limits:
    return Limits(
        wall_s=4.0, cpu_s=2, memory_mb=256, processes=4 if kind == "bubblewrap" else 1, disk_mb=4, files=100
    )  # fmt: skip


class Host:
    """A host with resources that attacks try to reach."""

    def __init__(self, folder: Path, inside: ExitStack) -> None:
        self.user = NOBODY if os.getuid() == 0 else os.getuid()
        self.secret = secrets.token_hex(16)
        self.folder, self.shared = folder / "private", folder / "shared"
        for place in (self.folder, self.shared):
            place.mkdir()
        self.canary = self.folder / "canary"
        self.canary.write_text(self.secret)
        (self.shared / "data").write_text("data")
        (self.shared / "out").symlink_to(self.canary)
        os.environ["AWS_SECRET_ACCESS_KEY"] = self.secret
        os.set_inheritable(inside.enter_context(self.canary.open()).fileno(), True)
        self.tcp = inside.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.udp = inside.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.udp.bind(("127.0.0.1", 0))
        self.unix = [
            inside.enter_context(socket.socket(socket.AF_UNIX, kind))
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_STREAM)
        ]
        addresses = (f"\0{self.secret[:8]}", f"\0{self.secret[:8]}d", str(self.folder / "socket"))
        for server, address in zip(self.unix, addresses, strict=True):
            server.bind(address)
        for server in (self.tcp, self.unix[0], self.unix[2]):
            server.listen()
        for path in (self.folder, self.shared, *self.folder.iterdir(), self.shared / "data"):
            os.chown(path, self.user, self.user)
        as_user = {"user": self.user, "group": self.user, "extra_groups": []} if os.getuid() == 0 else {}
        self.victim = inside.enter_context(_running(subprocess.Popen(["sleep", "3600"], **as_user)))  # type: ignore[call-overload]
        self.started = time.time() - time.monotonic()

    def lure(self, kind: str) -> dict[str, Any]:
        most = limits(kind)
        return {
            "secret": self.secret, "canary": str(self.canary), "folder": str(self.folder), "shared": str(self.shared),
            "home": str(Path.home()), "socket": str(self.folder / "socket"), "abstract": self.secret[:8],
            "port": self.tcp.getsockname()[1], "udp": self.udp.getsockname()[1], "parent": os.getpid(),
            "victim": self.victim.pid, "processes": most.processes, "memory": most.memory_mb << 20,
        }  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return the state of the host, which no attack may change."""
        files = [self.folder, self.shared, *sorted(self.folder.iterdir()), *sorted(self.shared.iterdir())]
        stats = [path.lstat() for path in files]
        return {
            "files": [
                (str(path), one.st_mode, one.st_uid, one.st_size, one.st_mtime_ns, one.st_nlink)
                for path, one in zip(files, stats, strict=True)
            ],
            "secret": self.canary.read_text() == self.secret,
            "processes": orphans(self.user),
            "descriptors": len([*Path("/proc/self/fd").iterdir()]),
            "mounts": Path("/proc/self/mountinfo").read_text(),
            "kernel": [Path(f"/proc/sys/kernel/{name}").read_text() for name in ("core_pattern", "hostname")],
            "System V": [_identifiers(kind) for kind in ("shm", "sem", "msg")],
            "shared memory": [path.name for path in Path("/dev/shm").iterdir() if _owner(path) == self.user],
            "victim": (
                self.victim.poll(), Path(f"/proc/{self.victim.pid}/limits").read_text(),
                os.getpriority(os.PRIO_PROCESS, self.victim.pid), os.sched_getaffinity(self.victim.pid),
                os.sched_getscheduler(self.victim.pid),
            ),
            "clock": abs(time.time() - time.monotonic() - self.started) < 1,
            "connections": [_waiting(server) for server in (self.tcp, self.udp, *self.unix)],
        }  # fmt: skip


def orphans(user: int) -> list[str]:
    """Return the processes of a user whose parents have ended, which a sandbox has left. Processes of other tests have
    parents."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and process.stat().st_uid == user:
                state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
                if parent == "1":
                    found.append(f"{process.name} {state}")
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended
    return found


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    succeeded: dict[str, str] = {}
    with ExitStack() as inside:
        host = Host(folder, inside)
        sandbox = Sandbox(limits(kind), [host.shared], kind)  # its self-test ensures that attacks run in nothing weaker
        if sandbox.run(Program("print(1)")).stdout != b"1\n":
            sys.exit("a program does not run")
        before = host.state()
        for name, source in ATTACKS.items():
            result = sandbox.run(Program(PRELUDE + source, stdin=json.dumps(host.lure(kind)).encode()))
            if what := _verdict(name, result, host.secret):
                succeeded[name] = what
        time.sleep(0.5)
        after = host.state()
        succeeded |= {f"state: {key}": f"{before[key]} -> {after[key]}" for key in before if before[key] != after[key]}
    print(json.dumps({"attacks": len(ATTACKS), "succeeded": succeeded}))


def _verdict(name: str, result: Result, secret: str) -> str:
    output = result.stdout + result.stderr
    if b"SUCCEEDED" in output or secret.encode() in output:
        return output.decode(errors="replace")[-300:]
    if name in MEETS and result.limit not in MEETS[name]:
        return f"met {result.limit}: {output[-300:]!r}"
    return "took too long" if result.wall_s > 30 else ""


@contextmanager
def _running(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _waiting(server: socket.socket) -> bool:
    """Return whether an attack reached a listening socket."""
    server.setblocking(False)
    try:
        server.accept() if server.type == socket.SOCK_STREAM else server.recv(1)
    except BlockingIOError:
        return False
    return True


# Sizes of sandlock's registry of names, which is a directory and segments, per user: bytes of memory, semaphores. The
# registry grows by a segment with every 4,096 new names of sandboxes (sandlock 0.9,
# sandlock-core/src/control/ownership.rs).
REGISTRY = {"shm": ("524328", "393248"), "sem": ("4", "8196")}


def _identifiers(kind: str) -> list[str]:
    """Return the identifiers of System V objects, except those of sandlock's registry."""
    rows = [line.split() for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]]
    return [identifier for _, identifier, _, size, *_ in rows if size not in REGISTRY.get(kind, ())]


def _owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    main()
