"""AWS, Lambda and two Slurm clusters in one world, with SkyPilot's API server, unmodified, before them."""

import csv
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.placement.cloud import lambda_account
from tests.placement.cloud.account import (
    BUCKET,
    ENDPOINT,
    KEYS,
    REGIONS,
    TYPES,
    client,
    make_public,
    price,
    write_catalogs,
)
from tests.placement.cloud.aws import Rules
from tests.placement.slurm.clusters import SKY_CONFIG, World, clusters
from tests.placement.world import api_server, root, running, sky, until, write_sky_config


@dataclass(frozen=True)
class Instance:
    """An instance that runs, as EC2 describes it."""

    id: str
    region: str
    kind: str
    spot: bool


@dataclass(frozen=True)
class Cloud:
    """The clouds, as tests see and change them."""

    slurm: World

    def instances(self) -> list[Instance]:
        """Return the instances that run or start, which cost money."""
        return [
            Instance(each["InstanceId"], region, each["InstanceType"], each.get("InstanceLifecycle") == "spot")
            for region in REGIONS
            for page in client("ec2", region).describe_instances()["Reservations"]
            for each in page["Instances"]
            if each["State"]["Name"] not in ("terminated", "shutting-down")
        ]

    def is_empty(self) -> bool:
        """Return whether nothing runs any longer, on AWS, Lambda and the clusters."""
        rented = [*self.instances(), *lambda_account.instances()]
        return not rented and not self.slurm.alpha.jobs() and not self.slurm.beta.jobs()

    def capacity(self, table: dict[str, int | str]) -> None:
        """Set the maximum number of running instances, or an error's code, by words of a place: `{"us-east-1": 0,
        "us-west-2/spot": 1, "m6i.large/on-demand": "VcpuLimitExceeded"}`. A place that no entry names has no limit, and
        all entries that name a place apply."""
        self.rules(capacity=table)

    def rules(self, **changes: object) -> None:
        """Change what is refused: see aws.Rules."""
        rules = Rules.read()
        for name, value in changes.items():
            setattr(rules, name, value)
        rules.write()

    def preempt(self, *ids: str) -> None:
        """Take machines, all of them if none is named: their power is cut."""
        for each in self.instances():
            if not ids or each.id in ids:
                client("ec2", each.region).terminate_instances(InstanceIds=[each.id])

    def end_jobs(self) -> None:
        """End what a failed test has left."""
        if not self.is_empty():
            sky("jobs", "cancel", "--all", "--yes")
            self.preempt()

    @property
    def prices(self) -> dict[tuple[str, str, bool], float]:
        """US dollars an hour by region, type and whether it is spot."""
        return {
            (region, kind, spot): price(region, kind, spot) for region, kind in self.places for spot in (True, False)
        }

    @property
    def places(self) -> list[tuple[str, str]]:
        """Regions and types."""
        return [(region, kind) for region in REGIONS for kind in TYPES]

    def log(self) -> str:
        """The requests for instances, and the machines that ran."""
        return (root() / "log/daemons.log").read_text()


@contextmanager
def cloud() -> Iterator[Cloud]:
    """AWS, the clusters and the API server, until the body ends."""
    for command in ("link add br0 type bridge", "addr add 10.77.0.1/32 dev br0", "link set br0 up"):
        subprocess.run(["ip", *command.split()], check=True)
    # The world's internet has one host. Without the managed policies moto has no role for SkyPilot's machines.
    os.environ |= {"AWS_ENDPOINT_URL": ENDPOINT, "AWS_DEFAULT_REGION": "us-east-1"} | KEYS
    write_sky_config(SKY_CONFIG)
    aws = running([sys.executable, "-m", "tests.placement.cloud.aws"], MOTO_IAM_LOAD_MANAGED_POLICIES="true")
    with clusters() as slurm, aws, lambda_account.lambda_cloud():
        until(_answers, "AWS")
        for region in REGIONS:
            make_public(region)
        client("s3", "us-east-1").create_bucket(Bucket=BUCKET)
        write_catalogs(Path.home() / ".sky/catalogs/v8/aws")
        _write_accelerators(Path.home() / ".sky/catalogs/v8/common/accelerators.csv")
        _configure()
        with api_server():
            sky("check", "aws", "lambda", "slurm")
            yield Cloud(slurm)


def _write_accelerators(path: Path) -> None:
    """SkyPilot's names of accelerators, with the clouds that have them."""
    chips: dict[str, list[str]] = {}
    for cloud, types in {"AWS": TYPES, "Lambda": lambda_account.TYPES}.items():
        for chip in sorted({kind.chip for kind in types.values()} - {""}):
            chips.setdefault(chip, []).append(cloud)
    path.parent.mkdir()
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["AcceleratorName", "Clouds"], *chips.items()])


def _configure() -> None:
    """Write the files that `aws configure` writes."""
    folder = Path.home() / ".aws"
    folder.mkdir()
    lines = [f"{name.lower()} = {value}" for name, value in KEYS.items()]
    (folder / "credentials").write_text("\n".join(["[default]", *lines, ""]))
    (folder / "credentials").chmod(0o600)
    (folder / "config").write_text("[default]\nregion = us-east-1\n")


def _answers() -> bool:
    try:
        return bool(urlopen(f"{ENDPOINT}/moto-api/", timeout=5))
    except URLError:
        return False


def main() -> None:
    """The world without tests, to look around."""
    with cloud():
        enter = root() / "enter"
        words = shlex.join(f"{name}={value}" for name, value in os.environ.items())
        enter.write_text(f'#!/bin/bash\nexec env -i {words} "$@"\n')
        enter.chmod(0o755)
        print(f"nsenter --all --target $(pgrep -n -f {__spec__.name}) {enter} COMMAND", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
