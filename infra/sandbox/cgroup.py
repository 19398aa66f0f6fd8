"""Limit the memory of a sandbox by a cgroup (version 2), where this process may make one.

A cgroup counts the memory of all processes together, with what the kernel keeps for them; resource limits can only give
each process a share of the limit. See Documentation/admin-guide/cgroup-v2.rst in Linux.
"""

import os
from functools import cache
from itertools import count
from pathlib import Path

from baton.infra.sandbox.program import MIB, Limits

OWN_MB = 48  # memory that bubblewrap and the runner use
_ROOT = Path("/sys/fs/cgroup")
_numbers = count()


@cache
def delegated() -> Path | None:
    """Return the cgroup in which cgroups with a memory limit can be made: this process's own, or the one above, which
    systemd delegates to a user's session; None if neither allows it."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    current = next((_ROOT / line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    for folder in (current, current.parent) if current else ():
        try:
            enabled = (folder / "cgroup.subtree_control").read_text().split()
        except OSError:
            continue
        if "memory" in enabled and os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK):
            return folder
    return None


class Cgroup:
    """The cgroup of one sandbox, whose memory includes the files that it writes."""

    def __init__(self, parent: Path, limits: Limits) -> None:
        self._folder = parent / f"baton-sandbox-{os.getpid()}-{next(_numbers)}"
        self._folder.mkdir()
        (self._folder / "memory.max").write_text(str((limits.memory_mb + limits.disk_mb + OWN_MB) * MIB))
        if (self._folder / "memory.swap.max").exists():  # not where the kernel has no swap
            (self._folder / "memory.swap.max").write_text("0")

    def enter(self) -> list[str]:
        """Return the beginning of a command that runs in the cgroup."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._folder / "cgroup.procs")]

    def oom_killed(self) -> bool:
        """Return whether a process was killed for memory."""
        events = dict(line.split() for line in (self._folder / "memory.events").read_text().splitlines())
        return events["oom_kill"] != "0"

    def remove(self) -> None:
        """Delete the cgroup, once its processes have ended."""
        self._folder.rmdir()
