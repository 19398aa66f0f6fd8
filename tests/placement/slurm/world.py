"""Two Slurm clusters and SkyPilot's API server on this machine, inside the namespaces that run.sh makes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from infra.paths import QUIET

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
BIN = REPOSITORY / ".venv" / "bin"
API_SERVER = "http://127.0.0.1:46580"

SKY_CONFIG = """
jobs:
  controller:
    consolidation_mode: true
slurm:
  provision_timeout: 10
"""
PLUGINS = "plugins:\n  - class: tests.placement.slurm.reachable.Reachable\n"


@dataclass(frozen=True)
class Cluster:
    """A Slurm cluster, all of it on this machine."""

    name: str
    nodes: tuple[str, ...]
    port: int  # of slurmctld; its nodes' follow
    ssh_port: int
    root: Path

    @property
    def here(self) -> Path:
        return self.root / self.name

    def slurm(self, *words: str) -> str:
        """What one of Slurm's commands prints."""
        environment = os.environ | {"SLURM_CONF": str(self.here / "slurm.conf")}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    def jobs(self) -> list[str]:
        """Ids of the jobs that run or wait."""
        return self.slurm("squeue", "-h", "-o", "%i").split()

    def write(self) -> None:
        (self.here / "state").mkdir(parents=True)
        words = {"NAME": self.name, "HERE": self.here, "ROOT": self.root, "PORT": self.port, "SSH_PORT": self.ssh_port}
        lines = filled("slurm.conf", words)
        for number, node in enumerate(self.nodes, 1):
            (self.here / f"spool-{node}").mkdir()
            lines += f"NodeName={node} Port={self.port + number} "
            lines += "CPUs=4 RealMemory=8000 State=UNKNOWN\n"
        lines += f"PartitionName=cpu Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP\n"
        (self.here / "slurm.conf").write_text(lines)
        (self.here / "sshd.conf").write_text(filled("sshd.conf", words))

    def commands(self) -> list[list[str]]:
        """What is started for it."""
        conf = str(self.here / "slurm.conf")
        log = str(self.root / f"log/sshd-{self.name}.log")
        return [
            ["/usr/sbin/sshd", "-D", "-f", str(self.here / "sshd.conf"), "-E", log],
            ["/usr/sbin/slurmctld", "-D", "-f", conf],
            *map(self.node, self.nodes),
        ]

    def node(self, name: str) -> list[str]:
        """What starts a node. Its processes, and no others, are in its UTS namespace."""
        return [
            "unshare",
            "--uts",
            "sh",
            "-c",
            f"hostname $0 && exec /usr/sbin/slurmd -D -f {self.here}/slurm.conf",
            name,
        ]

    def processes(self, name: str) -> list[int]:
        """Those on a node."""
        slurmd = int((self.here / f"slurmd-{name}.pid").read_text())
        namespace = Path(f"/proc/{slurmd}/ns/uts").readlink()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                if (entry / "ns/uts").readlink() == namespace:
                    found.append(int(entry.name))
        return found

    def is_up(self) -> bool:
        """Whether all nodes are there and idle."""
        try:
            return self.slurm("sinfo", "-h", "-t", "idle", "-o", "%D").split() == [str(len(self.nodes))]
        except subprocess.CalledProcessError:
            return False


@dataclass(frozen=True)
class World:
    """What the tests have."""

    root: Path
    alpha: Cluster
    beta: Cluster
    daemons: ExitStack

    def cut_power(self, cluster: Cluster, node: str) -> None:
        """Kill all that runs on a node, and start the node again when Slurm has ended its jobs. Earlier, and srun would
        wait for its tasks without end: unlike in a real power cut their connections have been closed."""
        for pid in cluster.processes(node):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not cluster.slurm("squeue", "-h", "-w", node), "Slurm ends the node's jobs", 120)
        self.daemons.enter_context(running(cluster.node(node)))


def filled(name: str, words: Mapping[str, object]) -> str:
    """A file of this folder with its @…@ filled in."""
    text = (HERE / name).read_text()
    for word, value in words.items():
        text = text.replace(f"@{word}@", str(value))
    return text


@contextmanager
def world() -> Iterator[World]:
    """The clusters and the API server, until the body ends."""
    root = Path(os.environ["BATON_WORLD"])
    alpha = Cluster("alpha", ("a1", "a2"), 6810, 2201, root)
    beta = Cluster("beta", ("b1",), 6820, 2202, root)
    _write_files(root, (alpha, beta))
    munge = root / "munge"
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    with ExitStack() as stack:
        words = [f"--{option}={munge / name}" for option, name in files.items()]
        stack.enter_context(running(["/usr/sbin/munged", "--foreground", "--force", *words]))
        until((munge / "socket").exists, "munged")
        for command in [*alpha.commands(), *beta.commands()]:
            stack.enter_context(running(command))
        until(alpha.is_up, "alpha")
        until(beta.is_up, "beta")
        answer = [
            sys.executable,
            "-m",
            "http.server",
            "46599",
            "--bind",
            "127.0.0.1",
            "--directory",
            str(root / "wheels"),
        ]
        stack.enter_context(running(answer))
        start_api_server()
        stack.callback(stop_api_server)
        yield World(root, alpha, beta, stack)


def _write_files(root: Path, clusters: tuple[Cluster, ...]) -> None:
    (root / "munge/key").write_bytes(os.urandom(1024))
    (root / "munge/key").chmod(0o600)
    for name in ("ssh-key", "ssh-host-key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(root / name)], check=True)
    words = {"ROOT": root, "PYTHON": BIN / "python", "UV": BIN / "uv"}
    for template, name in (("task-prolog.sh", "task-prolog.sh"), ("uv.sh", "uv")):
        (root / name).write_text(filled(template, words))
        (root / name).chmod(0o755)
    for cluster in clusters:
        cluster.write()
    home = Path.home()
    (home / ".slurm").mkdir()
    (home / ".sky").mkdir()
    hosts = [
        f"Host {cluster.name}\n  HostName 127.0.0.1\n  Port {cluster.ssh_port}\n  User root\n"
        f"  IdentityFile {root}/ssh-key\n  IdentitiesOnly yes\n"
        for cluster in clusters
    ]
    (home / ".slurm/config").write_text("".join(hosts))
    (home / ".sky/config.yaml").write_text(SKY_CONFIG)
    (home / ".sky/plugins.yaml").write_text(PLUGINS)


def start_api_server() -> None:
    wheels = str(Path(os.environ["BATON_WORLD"]) / "wheels")
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels, "PYTHONPATH": str(REPOSITORY)} | QUIET
    subprocess.run([BIN / "sky", "api", "start"], env=os.environ | environment, cwd=REPOSITORY, check=True, timeout=180)


def stop_api_server() -> None:
    subprocess.run([BIN / "sky", "api", "stop"], check=False, timeout=60)


@contextmanager
def running(command: list[str]) -> Iterator[None]:
    """A daemon in the foreground, ended with the body."""
    with (Path(os.environ["BATON_WORLD"]) / "log/daemons.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def until(true: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.2)
