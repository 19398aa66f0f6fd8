"""A real machine for an instance: its processes see only the machine's own resources, which are removed with it."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.placement.cloud.account import Type
from tests.placement.world import BIN, REPOSITORY, root

HERE = Path(__file__).parent
DISK_GB = 6  # the maximum, since the disk is in memory
MEMORY_GB = 8


@dataclass(frozen=True)
class Machine:
    """A machine: namespaces for network, mounts, processes, IPC and hostname; an overlay over this machine's root in a
    bounded amount of memory; cgroups that limit memory and CPUs; sshd with the key that cloud-init would install."""

    id: str
    process: "subprocess.Popen[bytes]"
    addresses: tuple[str, str]

    def stop(self) -> None:
        """Cut the machine's power. Its mounts and its network interface are removed with its last process."""
        self.process.kill()  # the machine's first process; all others end with it
        self.process.wait()
        for address in self.addresses:
            subprocess.run(["ip", "route", "del", f"{address}/32", "dev", "br0"], check=False, capture_output=True)
        for group in _groups(self.id):
            _remove(group)


def boot(id: str, limits: Type, public: str, private: str, keys: list[str], disk_gb: float = DISK_GB) -> Machine:
    """Start a machine with two addresses on the world's bridge."""
    words = {
        "ID": id,
        "PUBLIC": public,
        "PRIVATE": private,
        "KEYS": "\n".join(keys),
        "DISK": f"{int(min(disk_gb, DISK_GB) * 1024)}m",
        "CHIP": limits.chip,
        "CHIPS": str(limits.chips),
        "PROGRAMS": " ".join(map(str, _programs())),
    }
    limited = []
    for group in _groups(id):
        group.mkdir()
        _limit(group, min(limits.memory_gb, MEMORY_GB), limits.cpus)
        limited.append(str(group / "cgroup.procs"))
    with (root() / f"log/{id}.log").open("w") as log:
        process = subprocess.Popen(
            ["bash", str(HERE / "machine.sh"), *limited],
            env=os.environ | words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    ours = Path("/proc/self/ns/net").readlink()
    while process.poll() is None:
        name = Path(f"/proc/{process.pid}/comm").read_text().strip()
        if name == "unshare" and Path(f"/proc/{process.pid}/ns/net").readlink() != ours:
            break
        time.sleep(0.01)
    link = f"v{id[-8:]}"
    for command in (
        f"link add {link} type veth peer name eth0 netns {process.pid}",
        f"link set {link} master br0",
        f"link set {link} up",
        f"route replace {public}/32 dev br0",
        f"route replace {private}/32 dev br0",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    return Machine(id, process, (public, private))


def _programs() -> list[Path]:
    """Return the read-only folders that a machine gets from the host: this repository and its Python."""
    python = (BIN / "python").resolve()
    found = [REPOSITORY, BIN.parent.resolve(), python.parent.parent]
    return [path for path in dict.fromkeys(found) if path not in (Path("/usr"), Path("/"))]


def _groups(id: str) -> list[Path]:
    return [Path(folder) / id for folder in os.environ["BATON_WORLD_GROUPS"].split()]


def _limit(group: Path, memory_gb: int, cpus: int) -> None:
    limits = {
        "memory.limit_in_bytes": str(memory_gb << 30),  # cgroup v1
        "memory.max": str(memory_gb << 30),  # cgroup v2
        "cpu.cfs_quota_us": str(cpus * 100_000),
        "cpu.max": f"{cpus * 100_000} 100000",
    }
    for name, value in limits.items():
        if (group / name).exists():
            (group / name).write_text(value)


def _remove(group: Path) -> None:
    for _ in range(100):
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        try:
            return group.rmdir()
        except OSError:  # processes are still ending
            time.sleep(0.1)
