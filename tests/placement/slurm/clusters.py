"""Two Slurm clusters on this machine, inside the namespaces that run.sh creates."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.placement.world import filled, root, running, until, write_uv

HERE = Path(__file__).parent
SKY_CONFIG = "slurm:\n  provision_timeout: 10\n"


@dataclass(frozen=True)
class Cluster:
    """A Slurm cluster whose nodes are all on this machine."""

    name: str
    nodes: tuple[str, ...]
    port: int  # the port of slurmctld; those of its nodes follow
    ssh_port: int
    root: Path

    @property
    def here(self) -> Path:
        return self.root / self.name

    def slurm(self, *words: str) -> str:
        """Run one of Slurm's commands, and return its output."""
        environment = os.environ | {"SLURM_CONF": str(self.here / "slurm.conf")}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    def jobs(self) -> list[str]:
        """Return the ids of running and waiting jobs."""
        return self.slurm("squeue", "-h", "-o", "%i").split()

    def write(self) -> None:
        (self.here / "state").mkdir(parents=True)
        words = {"NAME": self.name, "HERE": self.here, "ROOT": self.root, "PORT": self.port, "SSH_PORT": self.ssh_port}
        lines = filled(HERE / "slurm.conf", words)
        for number, node in enumerate(self.nodes, 1):
            (self.here / f"spool-{node}").mkdir()
            lines += f"NodeName={node} Port={self.port + number} "
            lines += "CPUs=4 RealMemory=8000 State=UNKNOWN\n"
        lines += f"PartitionName=cpu Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP\n"
        (self.here / "slurm.conf").write_text(lines)
        (self.here / "sshd.conf").write_text(filled(HERE / "sshd.conf", words))

    def commands(self) -> list[list[str]]:
        """Return the commands that start the cluster."""
        conf = str(self.here / "slurm.conf")
        log = str(self.root / f"log/sshd-{self.name}.log")
        return [
            ["/usr/sbin/sshd", "-D", "-f", str(self.here / "sshd.conf"), "-E", log],
            ["/usr/sbin/slurmctld", "-D", "-f", conf],
            *map(self.node, self.nodes),
        ]

    def node(self, name: str) -> list[str]:
        """Return the command that starts a node. Only the node's processes are in its UTS namespace."""
        return [
            "unshare",
            "--uts",
            "sh",
            "-c",
            f"hostname $0 && exec /usr/sbin/slurmd -D -f {self.here}/slurm.conf",
            name,
        ]

    def processes(self, name: str) -> list[int]:
        """Return the processes on a node."""
        slurmd = int((self.here / f"slurmd-{name}.pid").read_text())
        namespace = Path(f"/proc/{slurmd}/ns/uts").readlink()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # the process has ended
                if (entry / "ns/uts").readlink() == namespace:
                    found.append(int(entry.name))
        return found

    def is_up(self) -> bool:
        """Return whether all nodes exist and are idle."""
        try:
            return self.slurm("sinfo", "-h", "-t", "idle", "-o", "%D").split() == [str(len(self.nodes))]
        except subprocess.CalledProcessError:
            return False


@dataclass(frozen=True)
class World:
    """The tests' interface to the clusters."""

    alpha: Cluster
    beta: Cluster
    daemons: ExitStack

    def cut_power(self, cluster: Cluster, node: str) -> None:
        """Kill all processes on a node, and restart the node once Slurm has ended its jobs. If it restarted earlier,
        srun would wait for its tasks forever, since their connections are closed here, unlike in a real power cut."""
        for pid in cluster.processes(node):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not cluster.slurm("squeue", "-h", "-w", node), "Slurm ends the node's jobs", 120)
        self.daemons.enter_context(running(cluster.node(node)))


@contextmanager
def occupied(cluster: Cluster) -> Iterator[None]:
    """Occupy all nodes of a cluster with somebody else's job."""
    words = ["sbatch", "--parsable", "--exclusive", f"--nodes={len(cluster.nodes)}", "--wrap", "sleep 3600"]
    job = cluster.slurm(*words, f"--output={cluster.here}/other.txt").strip()
    until(lambda: cluster.slurm("squeue", "-h", "-j", job, "-o", "%t").strip() == "R", "the other job")
    try:
        yield
    finally:
        cluster.slurm("scancel", job)
        until(lambda: job not in cluster.jobs(), "the other job's end")


@contextmanager
def clusters() -> Iterator[World]:
    """Run the clusters until the end of the block."""
    alpha = Cluster("alpha", ("a1", "a2"), 6810, 2201, root())
    beta = Cluster("beta", ("b1",), 6820, 2202, root())
    _write_files(root(), (alpha, beta))
    munge = root() / "munge"
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    with ExitStack() as stack:
        words = [f"--{option}={munge / name}" for option, name in files.items()]
        stack.enter_context(running(["/usr/sbin/munged", "--foreground", "--force", *words]))
        until((munge / "socket").exists, "munged")
        for command in [*alpha.commands(), *beta.commands()]:
            stack.enter_context(running(command))
        until(alpha.is_up, "alpha")
        until(beta.is_up, "beta")
        yield World(alpha, beta, stack)


def _write_files(root: Path, clusters: tuple[Cluster, ...]) -> None:
    (root / "munge/key").write_bytes(os.urandom(1024))
    (root / "munge/key").chmod(0o600)
    for name in ("ssh-key", "ssh-host-key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / name)], check=True)
    (root / "task-prolog.sh").write_text(filled(HERE / "task-prolog.sh", {"ROOT": root}))
    (root / "task-prolog.sh").chmod(0o755)
    write_uv(root / "uv")
    for cluster in clusters:
        cluster.write()
    hosts = [
        f"Host {cluster.name}\n  HostName 127.0.0.1\n  Port {cluster.ssh_port}\n  User root\n"
        f"  IdentityFile {root}/ssh-key\n  IdentitiesOnly yes\n"
        for cluster in clusters
    ]
    (Path.home() / ".slurm").mkdir()
    (Path.home() / ".slurm/config").write_text("".join(hosts))
