"""A pod: a process with a separate home and only a pod's environment. If root can create namespaces, the pod also has a
separate network, sees neither the machine's temporary files nor the project's folder nor the user's home, and all its
processes end with it."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Event

import psutil

from tests.cluster import network
from tests.cluster.cgroup import Cgroup, can_be_made
from tests.cluster.network import Network
from tests.processes import kill_tree

ROOT = Path(__file__).parents[2]
ENVIRONMENT = Path(sys.prefix).resolve()
HIDDEN = (Path(tempfile.gettempdir()), Path.home(), ROOT)
NAMESPACES = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
RELAY = Path(network.__file__).read_text()
GRACE_S = 30  # Kubernetes' default

# Mount the needed folders elsewhere, cover the rest with empty folders, and mount the needed ones in their places
# again.
ALONE = """
mount -t tmpfs none /mnt
number=0
for path in $NEEDED; do
  number=$((number + 1)); mkdir /mnt/$number; mount --bind "$path" /mnt/$number
done
for path in $HIDDEN; do [ ! -d "$path" ] || mount -t tmpfs none "$path"; done
number=0
for path in $NEEDED; do
  number=$((number + 1)); mkdir -p "$path"; mount --move /mnt/$number "$path"
done
umount /mnt
[ -z "$DISK" ] || { mount -t tmpfs -o size=$DISK none "$HOME/.."; mkdir "$HOME" "$TMPDIR"; }
$RELAY
unset NEEDED HIDDEN DISK
cd "$0"
exec "$@"
"""


@cache
def can_be_alone() -> bool:
    """Return whether this user may create namespaces, which requires root."""
    if os.geteuid() or not shutil.which("unshare"):
        return False
    return subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode == 0


class Pod:
    """One running attempt at a task."""

    def __init__(
        self,
        name: str,
        task: str,
        attempt: int,
        folder: Path,
        reachable: Network,
        command: Sequence[str],
        given: Mapping[str, str],
        limits: Mapping[str, str],
        disk: str = "",
    ) -> None:
        self.name, self.task, self.attempt, self.log = name, task, attempt, folder / "log.txt"
        self.home = Path(tempfile.mkdtemp(prefix="pod-"))  # a short name, since vLLM has sockets in TMPDIR
        folder.mkdir()
        work = self.home / "root"
        for path in (work, self.home / "tmp"):
            path.mkdir()
        environment = {
            "PATH": f"{ENVIRONMENT / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(work),
            "TMPDIR": str(self.home / "tmp"),
            "LANG": "C.UTF-8",
            **given,
        }
        words = list(command)
        if can_be_alone():
            needed = (self.home, ENVIRONMENT, Path(sys.base_prefix).resolve(), reachable.folder)
            environment |= {"NEEDED": " ".join(map(str, needed)), "HIDDEN": " ".join(map(str, HIDDEN)), "DISK": disk}
            relay = [str(ENVIRONMENT / "bin/python"), "-IS", "-c", RELAY, str(reachable.folder)]
            script = ALONE.replace("$RELAY", shlex.join([*relay, *reachable.reach(given.values())]))
            words = [*NAMESPACES, "sh", "-euc", script, str(work), *words]
        self.cgroup = Cgroup(f"baton-{name}", limits) if can_be_made() else None
        words = [*(self.cgroup.enter() if self.cgroup else ()), *words]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words,
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.grace_s = GRACE_S
        self.deleted = False
        self.out_of_memory = False  # whether the kernel has killed one of its processes for lack of memory
        self.lost = Event()

    def alive(self) -> bool:
        return self.process.poll() is None

    def wait(self) -> int:
        """Wait for the end of the pod, and delete its disk. Returns the exit code; 128 and the signal's number if a
        signal ended the pod, or if Kubernetes believes so."""
        while self.alive():
            if self.lost.wait(0.05):
                return 128 + signal.SIGKILL
        code = self.process.wait()
        if self.cgroup:
            self.out_of_memory = self.cgroup.memory_kills() > 0
            self.cgroup.remove()
        shutil.rmtree(self.home, ignore_errors=True)
        return 128 - code if code < 0 else code

    def lose(self) -> None:
        """Cut off the pod's node: Flyte assumes that the pod is dead, while it keeps running."""
        self.lost.set()

    def pause(self) -> None:
        """Suspend all processes of the pod, to inspect its disk."""
        try:
            for process in psutil.Process(self.process.pid).children(recursive=True):
                process.suspend()
        except psutil.NoSuchProcess:
            pass  # it has ended in the meantime

    def kill(self) -> None:
        """Kill all processes of the pod at once, as the loss of its node does."""
        kill_tree(self.process.pid)

    def delete(self) -> None:
        """Delete the pod as Kubernetes does: SIGTERM for its first process, and SIGKILL after the grace period."""
        self.deleted = True
        try:
            top = psutil.Process(self.process.pid)
            (first,) = top.children() if can_be_alone() else [top]
            first.send_signal(signal.SIGTERM)
            self.process.wait(self.grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
        except (psutil.NoSuchProcess, ValueError):
            self.kill()  # it is ending, or has not started yet
