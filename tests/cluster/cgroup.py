"""A pod's cgroup with its limits, of version 1 or 2, on machines where this user may create one."""

import os
import re
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from baton.infra.pod_spec import in_bytes, in_cores

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
MEMORY = {"v1": ("memory", "memory.limit_in_bytes"), "v2": ("", "memory.max")}
CPU = {"v1": ("cpu", "cpu.cfs_quota_us"), "v2": ("", "cpu.max")}
KILLS = {"v1": "memory.oom_control", "v2": "memory.events"}


@cache
def version() -> str | None:
    """Return the version of the cgroup controllers that this user may use, or None if there is none."""
    if os.access(ROOT / "memory/cgroup.procs", os.W_OK) and os.access(ROOT / "cpu/cgroup.procs", os.W_OK):
        return "v1"
    control = ROOT / "cgroup.subtree_control"
    enabled = control.read_text().split() if os.access(control, os.W_OK) else []
    return "v2" if {"memory", "cpu"} <= {*enabled} else None


def can_be_made() -> bool:
    return version() is not None


class Cgroup:
    """A cgroup. Its processes must end before it is removed."""

    def __init__(self, name: str, limits: Mapping[str, str]) -> None:
        self._folders = []
        self._kind = kind = str(version())
        for amount, (controller, file) in ((limits.get("memory"), MEMORY[kind]), (limits.get("cpu"), CPU[kind])):
            folder = ROOT / controller / name
            folder.mkdir(exist_ok=True)
            self._folders.append(folder)
            if amount and file.startswith("memory"):
                (folder / file).write_text(str(int(in_bytes(amount))))
            elif amount:
                quota = int(in_cores(amount) * PERIOD_US)
                (folder / file).write_text(f"{quota} {PERIOD_US}" if kind == "v2" else str(quota))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def enter(self) -> list[str]:
        """Return the prefix of a command that runs in the cgroup."""
        files = [str(folder / "cgroup.procs") for folder in dict.fromkeys(self._folders)]
        return ["sh", "-euc", 'for file in $0; do echo $$ > "$file"; done; exec "$@"', " ".join(files)]

    def add(self, process: int) -> None:
        """Move a process into the cgroup."""
        for folder in dict.fromkeys(self._folders):
            (folder / "cgroup.procs").write_text(str(process))

    def memory_kills(self) -> int:
        """Return the number of processes of a cgroup that the kernel has killed for lack of memory."""
        (found,) = re.findall(r"^oom_kill (\d+)$", (self._folders[0] / KILLS[self._kind]).read_text(), re.MULTILINE)
        return int(found)

    def remove(self) -> None:
        """Remove the cgroup once its processes have ended; killed ones end after a moment."""
        for folder in dict.fromkeys(self._folders):
            deadline = time.monotonic() + 10
            while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
                time.sleep(0.05)
            folder.rmdir()
