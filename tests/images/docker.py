"""A separate Docker daemon from Debian's packages, with its data and its socket in one folder.

python -m tests.images.docker       fails where this machine cannot run a container, such as in a sandbox
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

PACKAGES = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "docker-registry": "docker-registry",
    "mmdebstrap": "mmdebstrap",
    "nsenter": "util-linux",
}
LACKING = sorted({package for program, package in PACKAGES.items() if not shutil.which(program)})
needs_docker = pytest.mark.skipif(
    bool(os.geteuid() or LACKING), reason=f"NOT RUN: needs root and Debian's packages {' '.join(LACKING)}"
)
START_S = 60
# The daemon does not change this machine's network, so builds use it as it is.
CLIENT = """#!/bin/sh
[ "$1" != build ] || { shift; set -- build --network host "$@"; }
exec %s "$@"
"""


@dataclass(frozen=True)
class Docker:
    environment: Mapping[str, str]  # variables of a process that uses the daemon

    def __call__(self, *words: str) -> str:
        """Run a command of the client, and return its output. Raises CalledProcessError."""
        return self.run(*words).stdout.strip()

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", *words],
            env=self.environment,
            check=check,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )


@contextmanager
def daemon(folder: Path) -> Iterator[Docker]:
    """Run a daemon until the context ends. Its data remain in the folder."""
    client = folder / "bin/docker"
    client.parent.mkdir(parents=True, exist_ok=True)
    client.write_text(CLIENT % shutil.which("docker"))
    client.chmod(0o755)
    socket = f"unix://{folder}/socket"
    environment = os.environ | {
        "PATH": f"{client.parent}:{os.environ['PATH']}",
        "DOCKER_HOST": socket,
        "DOCKER_CONFIG": str(folder / "config"),
        "DOCKER_BUILDKIT": "0",  # Debian's packages lack buildx
    }
    words = ["dockerd", "--host", socket, "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")]
    words += ["--pidfile", str(folder / "pid"), "--iptables=false", "--ip6tables=false", "--bridge=none"]
    docker, log = Docker(environment), folder / "log.txt"
    with log.open("wb") as stream, subprocess.Popen(words, stdout=stream, stderr=stream) as process:
        try:
            deadline = time.monotonic() + START_S
            while docker.run("version", check=False).returncode:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
                time.sleep(0.2)
            yield docker
        finally:
            process.terminate()
            process.wait()
            for mount in Path("/proc/mounts").read_text().splitlines():  # mounts of containers with the host's network
                if (place := mount.split()[1]).startswith(f"{folder}/"):
                    subprocess.run(["umount", place], check=True)


def main() -> None:
    with TemporaryDirectory() as folder, daemon(Path(folder)) as docker:
        image = Path(folder, "image.tar")
        subprocess.run(["tar", "-C", "/", "-cf", str(image), "usr/sbin/ldconfig"], check=True)  # a static program
        docker("import", str(image), "probe")
        print(docker("run", "--rm", "--network", "host", "probe", "/usr/sbin/ldconfig", "--version").splitlines()[0])


if __name__ == "__main__":
    main()
