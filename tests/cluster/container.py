"""A pod as a container of its image without access to this machine, started as a kubelet does by pod-template.yaml,
with a read-only root. Like a Kubernetes pod, it has a first container that holds its network."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event

from baton.infra.pod_spec import in_bytes, in_cores
from tests.cluster.network import Network
from tests.cluster.pod import GRACE_S, RELAY, Pod
from tests.images.docker import Docker

PIDS = 1024  # podPidsLimit on GKE
WRITABLE = ("/root", "/tmp")  # mount points of emptyDirs
RESTRICTED = ("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only")


class Container(Pod):
    """One attempt at a task, started in an image."""

    def __init__(
        self,
        docker: Docker,
        image: str,
        name: str,
        task: str,
        attempt: int,
        folder: Path,
        reachable: Network,
        command: Sequence[str],
        given: Mapping[str, str],
        limits: Mapping[str, str],
    ) -> None:
        self.name, self.task, self.attempt, self.log = name, task, attempt, folder / "log.txt"
        self.docker, self.network, self.cgroup = docker, f"{name}-network", None
        folder.mkdir()
        words = ["--detach", "--name", self.network, "--network", "none", "--entrypoint", "sleep"]
        words += ["--hostname", name, "--add-host", f"{name}:127.0.0.1"]  # as a kubelet does; torchrun needs the name
        docker("run", *words, image, "infinity")
        # the relay runs in the container's network and process namespaces, but sees the files of this machine
        holder = docker("inspect", "--format", "{{.State.Pid}}", self.network)
        relay = [sys.executable, "-IS", "-c", RELAY, str(reachable.folder), *reachable.reach(given.values())]
        subprocess.run(["nsenter", "--net", "--pid", "--target", holder, *relay], check=True)
        words = ["--name", name, "--network", f"container:{self.network}", "--pids-limit", str(PIDS), *RESTRICTED]
        words += [f"--volume={self._volume(path)}:{path}" for path in WRITABLE]
        if memory := limits.get("memory"):
            words += ["--memory", str(int(in_bytes(memory))), "--memory-swap", str(int(in_bytes(memory)))]
        if cpu := limits.get("cpu"):
            words += ["--cpus", str(in_cores(cpu))]
        words += [f"--env={key}={value}" for key, value in given.items()]
        docker("create", *words, image, *command)
        self.home = Path(tempfile.mkdtemp(prefix="pod-"))
        (self.home / "root").symlink_to(
            docker("volume", "inspect", "--format", "{{.Mountpoint}}", self._volume("/root"))
        )
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["docker", "start", "--attach", name],
                env=docker.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.grace_s = GRACE_S
        self.deleted = self.out_of_memory = False
        self.lost = Event()

    def _volume(self, path: str) -> str:
        return f"{self.name}{path.replace('/', '-')}"

    def wait(self) -> int:
        code = super().wait()
        if self.lost.is_set():
            return code
        self.out_of_memory = self.docker("inspect", "--format", "{{.State.OOMKilled}}", self.name) == "true"
        self.docker("rm", "--force", self.name, self.network)
        self.docker("volume", "rm", *map(self._volume, WRITABLE))
        return code

    def pause(self) -> None:
        self.docker("pause", self.name)

    def kill(self) -> None:
        self.docker.run("kill", self.name, check=False)  # no effect if it has ended

    def delete(self) -> None:
        self.deleted = True
        self.docker.run("stop", "--time", str(self.grace_s), self.name, check=False)
