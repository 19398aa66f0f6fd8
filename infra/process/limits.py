"""The memory and the CPUs that this process's cgroup (version 1 or 2) may use, and its kills for memory."""

import os
import re
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PROC_CGROUP = Path("/proc/self/cgroup")
MIB = 2**20
OOM_SCORE = 500  # the kernel treats the engine as if it used this many thousandths of the limit more
UNLIMITED = 2**62  # version 1 writes a number near 2**63 if there is no limit


def memory_limit(root: Path = CGROUPS, proc: Path = PROC_CGROUP) -> int | None:
    """Return the limit in bytes, or None if there is none."""
    limits = [
        int(words)
        for controller, name in (("", "memory.max"), ("memory", "memory.limit_in_bytes"))
        for words in _values(controller, name, root, proc)
        if words != "max" and int(words) < UNLIMITED
    ]
    return min(limits, default=None)


def memory_kills(root: Path = CGROUPS, proc: Path = PROC_CGROUP) -> int:
    """Return how many of the cgroup's processes the kernel has killed for memory. Version 1 kills only the process that
    grew, so the others can report it; under version 2 Kubernetes has all of a container's processes killed."""
    for controller, name in (("", "memory.events"), ("memory", "memory.oom_control")):
        for words in _values(controller, name, root, proc)[:1]:
            if counts := re.search(r"^oom_kill (\d+)$", words, re.MULTILINE):
                return int(counts[1])
    return 0


def prefer_oom_kill(pid: int) -> None:
    """Let the kernel, out of memory, kill this child and its children before this process, which can then report it.
    No privilege is needed to raise the value (proc_pid_oom_score_adj(5)); where /proc is read-only the kernel chooses.
    """
    with suppress(OSError):  # the child may have ended already
        score = int(Path("/proc/self/oom_score_adj").read_text()) + OOM_SCORE
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(min(score, 1000)))


def cpu_limit(root: Path = CGROUPS, proc: Path = PROC_CGROUP) -> float | None:
    """Return the limit in cores, perhaps a fraction of one, or None if there is none."""
    shares = [words.split() for words in _values("", "cpu.max", root, proc)]
    for controller in ("cpu", "cpu,cpuacct"):
        quotas, periods = (_values(controller, f"cpu.cfs_{name}_us", root, proc) for name in ("quota", "period"))
        shares += [[quota, period] for quota, period in zip(quotas, periods, strict=True)]
    return min((int(quota) / int(period) for quota, period in shares if quota not in ("max", "-1")), default=None)


def cores() -> int:
    """Return how many processes can compute at the same time."""
    limit = cpu_limit()
    allowed = len(os.sched_getaffinity(0))
    return allowed if limit is None else max(1, min(allowed, int(limit)))


def memory() -> int:
    """Return the memory of the machine, or of the container, in bytes."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(machine, memory_limit() or machine)


def resident_memory() -> int:
    """Return the resident memory of this process in bytes (proc_pid_statm(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _values(controller: str, name: str, root: Path, proc: Path) -> list[str]:
    """Return the contents of a file in this process's cgroup and in those above it. Where the container has no cgroup
    namespace, the path in /proc is that of the node, and the container's own cgroup is at the root."""
    hierarchy = root / controller
    lines = [line.split(":", 2) for line in proc.read_text().splitlines()] if proc.exists() else []
    paths = [
        path for _, controllers, path in lines if controller == controllers or controller in controllers.split(",")
    ]
    folder = hierarchy.joinpath(*(path.strip("/") for path in paths[:1]))
    folders = [place for place in (folder, *folder.parents) if place.is_relative_to(hierarchy)]
    return [file.read_text().strip() for place in folders if (file := place / name).exists()]
