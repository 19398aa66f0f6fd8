"""A world with AWS, Lambda, two Slurm clusters, and SkyPilot's unmodified API server in front of them."""

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
    """A running instance, as EC2 describes it."""

    id: str
    region: str
    kind: str
    spot: bool


@dataclass(frozen=True)
class Cloud:
    """The test's interface to the clouds."""

    slurm: World

    def instances(self) -> list[Instance]:
        """Return the running and starting instances, which cost money."""
        return [
            Instance(each["InstanceId"], region, each["InstanceType"], each.get("InstanceLifecycle") == "spot")
            for region in REGIONS
            for page in client("ec2", region).describe_instances()["Reservations"]
            for each in page["Instances"]
            if each["State"]["Name"] not in ("terminated", "shutting-down")
        ]

    def is_empty(self) -> bool:
        """Return whether nothing is running on AWS, Lambda and the clusters."""
        rented = [*self.instances(), *lambda_account.instances()]
        return not rented and not self.slurm.alpha.jobs() and not self.slurm.beta.jobs()

    def capacity(self, table: dict[str, int | str]) -> None:
        """Set the maximum number of running instances, or an error's code, by place: `{"us-east-1": 0,
        "us-west-2/spot": 1, "m6i.large/on-demand": "VcpuLimitExceeded"}`. A place that matches no entry has no limit;
        if several entries match, all of them apply."""
        self.rules(capacity=table)

    def rules(self, **changes: object) -> None:
        """Change the refusals of AWS, see aws.Rules."""
        rules = Rules.read()
        for name, value in changes.items():
            setattr(rules, name, value)
        rules.write()

    def preempt(self, *ids: str) -> None:
        """Preempt the named machines, or all machines if none is named, by cutting their power."""
        for each in self.instances():
            if not ids or each.id in ids:
                client("ec2", each.region).terminate_instances(InstanceIds=[each.id])

    def end_jobs(self) -> None:
        """End the jobs that a failed test has left."""
        if not self.is_empty():
            sky("jobs", "cancel", "--all", "--yes")
            self.preempt()

    @property
    def prices(self) -> dict[tuple[str, str, bool], float]:
        """The prices in US dollars an hour, by region, type and whether the machine is a spot instance."""
        return {
            (region, kind, spot): price(region, kind, spot) for region, kind in self.places for spot in (True, False)
        }

    @property
    def places(self) -> list[tuple[str, str]]:
        """The pairs of region and type."""
        return [(region, kind) for region in REGIONS for kind in TYPES]

    def log(self) -> str:
        """Return the requests for instances, and the machines that ran."""
        return (root() / "log/daemons.log").read_text()


@contextmanager
def cloud() -> Iterator[Cloud]:
    """Run AWS, the clusters and the API server until the end of the block."""
    for command in ("link add br0 type bridge", "addr add 10.77.0.1/32 dev br0", "link set br0 up"):
        subprocess.run(["ip", *command.split()], check=True)
    # The world's internet has one host. Without the managed policies, moto lacks the role that SkyPilot's machines
    # need.
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
    """Write SkyPilot's names of accelerators, with the clouds that offer them."""
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
    """Start the world without tests, for interactive use."""
    with cloud():
        enter = root() / "enter"
        words = shlex.join(f"{name}={value}" for name, value in os.environ.items())
        enter.write_text(f'#!/bin/bash\nexec env -i {words} "$@"\n')
        enter.chmod(0o755)
        print(f"nsenter --all --target $(pgrep -n -f {__spec__.name}) {enter} COMMAND", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
