"""The script of a job, run by bash as on the machines of a cloud. Each machine has a separate home, and all share only
the storage."""

import shlex
import subprocess
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from baton.infra.placement.job import Order, sky_task

ROOT = Path(__file__).parents[2]
# The code that Flyte's command unpacks into the job's folder, and a stage that other machines can stop.
UNPACK = f"ln -s {shlex.quote(str(ROOT / 'infra'))} infra"
STAGE = """
from baton.infra.placement.machine import ending_together
with ending_together():
    exec(sys.argv[1])
"""


def python(program: str) -> str:
    """Return a stage's command, written in Python; `rank` is the machine's rank."""
    lead = f"import os, signal, sys, time; rank = int(os.environ['NODE_RANK'])\n{STAGE}"
    return f"exec {shlex.quote(sys.executable)} -c {shlex.quote(lead)} {shlex.quote(program)}"


@dataclass
class Machines:
    """A provider of machines that rents a new machine for each start. Homes are in `folder`."""

    folder: Path
    storage: str
    secrets: dict[str, str]
    unpack: str = UNPACK

    def __post_init__(self) -> None:
        self._numbers = count()

    def start(
        self, command: str, nodes: int = 1, output: str = "out", **placement: Any
    ) -> list["subprocess.Popen[bytes]"]:
        order = Order({"nodes": nodes, **placement}, self.storage, "20260101-000000-000-0000", {})
        config = sky_task("baton-x-0", order, {}, ["bash", "-c", f"{self.unpack}; {command}"], output)
        return [self._machine(config, rank) for rank in range(nodes)]

    def run(self, command: str, nodes: int = 1, output: str = "out", **placement: Any) -> list[int]:
        """Run a job, and return the exit codes of its machines by rank."""
        return [machine.wait(180) for machine in self.start(command, nodes, output, **placement)]

    def homes(self) -> list[Path]:
        return sorted(self.folder.glob("machine-*"))

    def _machine(self, config: dict[str, Any], rank: int) -> "subprocess.Popen[bytes]":
        home = self.folder / f"machine-{next(self._numbers):02}"
        home.mkdir(parents=True)
        environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(home)}
        environment |= {"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
        environment |= config["envs"] | config["secrets"] | self.secrets
        with (self.folder / f"{home.name}.txt").open("wb") as log:
            return subprocess.Popen(
                ["bash", "-c", config["run"]], env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def output(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("machine-*.txt")))
