"""Choose the kind of sandbox that works on this machine, and start it.

    with Sandbox(Limits(wall_s=5)).start() as worker:
        worker.run(Program("print(input())", stdin=b"4"))

bubblewrap is preferred to sandlock. If neither works, NoSandbox is raised: a program never runs in a bare subprocess.
Each is tested by self_test before its first use in a process.
"""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from baton.infra.sandbox import bubblewrap, bubblewrapped, landlocked
from baton.infra.sandbox.program import Limits, NoSandbox, Program, Result
from baton.infra.sandbox.self_test import Start, faults
from baton.infra.sandbox.worker import Worker

KINDS: dict[str, Start] = {"bubblewrap": bubblewrapped.start, "sandlock": landlocked.start}
_MISSING = {"bubblewrap": bubblewrap.missing, "sandlock": landlocked.missing}
_TRIED_WITH = {"bubblewrap": 2, "sandlock": landlocked.MOST_PROCESSES}


class Sandbox:
    """One kind of sandbox with limits, and folders that programs may read. Raises NoSandbox."""

    def __init__(
        self, limits: Limits | None = None, folders: Sequence[str | Path] = (), kind: str | None = None
    ) -> None:
        self.kind = kind or _first_usable()
        if problem := unusable(self.kind):
            raise NoSandbox(f"{self.kind}: {problem}")
        self.limits = limits or Limits()
        self.folders = [_readable(Path(folder)) for folder in folders]

    def start(self) -> Worker:
        """Start a sandbox, which waits for its program."""
        return KINDS[self.kind](self.limits, self.folders)

    def run(self, program: Program) -> Result:
        """Run one program."""
        with self.start() as worker:
            return worker.run(program)


def _readable(folder: Path) -> Path:
    if not folder.is_dir():
        raise NoSandbox(f"{folder}: programs may read this folder, but it does not exist")
    if os.getuid() == 0 and folder.stat().st_mode & 0o005 != 0o005:
        raise NoSandbox(f"{folder}: programs run as nobody, who may not read it; chmod o+rx")
    return folder.resolve()


@cache
def unusable(kind: str) -> str:
    """Return why this machine cannot use a kind of sandbox; empty if it can. The first call takes about two seconds."""
    return _MISSING[kind]() or faults(KINDS[kind], _TRIED_WITH[kind])


def _first_usable() -> str:
    problems = {}
    for kind in KINDS:
        if not (problem := unusable(kind)):
            return kind
        problems[kind] = problem
    reasons = "\n".join(f"  {kind}: {problem}" for kind, problem in problems.items())
    raise NoSandbox(
        f"code is run only in a sandbox, and none is usable on this machine:\n{reasons}\n"
        "Either of them is enough: bubblewrap (Debian, Ubuntu: apt-get install bubblewrap; a container must allow user "
        "namespaces), or sandlock (pip install sandlock; Linux 6.12 with Landlock; a container's seccomp profile must "
        "allow pidfd_getfd: docs/flyte-cluster.md)."
    )
