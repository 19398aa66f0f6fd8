"""The Lambda account of the tests: its address, key, types and prices, and functions to use it.

SkyPilot's client is unmodified and has a fixed address. The world's hosts file maps the address to the simulation, and
REQUESTS_CA_BUNDLE makes its certificate trusted.
"""

import csv
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import requests

from tests.placement.cloud.account import Type
from tests.placement.cloud.rules import InFile
from tests.placement.world import root, running, until

HOST = "cloud.lambdalabs.com"
ADDRESS = "10.77.0.1"  # the world's bridge
KEY = "secret_baton_0123456789abcdef.ExampleKeyOfBaton"
REGIONS = ("us-east-1", "us-south-1", "europe-central-1")  # the order in which SkyPilot tries them
TYPES = {  # US dollars an hour, the same everywhere; Lambda has no spot machines
    "cpu_4x_general": Type(4, 16, 0.10, math.nan),
    "gpu_1x_a10": Type(30, 200, 0.75, math.nan, "A10", 1),
    "gpu_1x_h100_pcie": Type(26, 200, 3.29, math.nan, "H100", 1),
    "gpu_8x_a100_80gb_sxm4": Type(240, 1800, 14.32, math.nan, "A100-80GB", 8),
    "gpu_8x_h100_sxm5": Type(208, 1800, 23.92, math.nan, "H100", 8),
}
SOLD_OUT = "sold-out"  # capacity that is listed but not available


@dataclass
class Rules(InFile):
    """The refusals of this cloud."""

    file: ClassVar[str] = "lambda.json"

    # the maximum number of instances, SOLD_OUT, or a launch's error code, by place: "us-east-1/gpu_1x_a10"
    capacity: dict[str, int | str] = field(default_factory=dict)
    everything: str = ""  # the error code of every answer
    stuck: list[str] = field(default_factory=list)  # regions and types whose instances stay "booting"


def instances() -> list[dict[str, Any]]:
    """Return the instances that are running, starting or stopping, which cost money."""
    found: list[dict[str, Any]] = _ask("GET", "instances")
    return found


def terminate(*ids: str) -> None:
    """Terminate the named machines, or all machines if none is named."""
    if ids := ids or tuple(each["id"] for each in instances()):
        _ask("POST", "instance-operations/terminate", {"instance_ids": ids})


@contextmanager
def lambda_cloud() -> Iterator[None]:
    """Run Lambda until the end of the block, with SkyPilot's credentials and catalog for it."""
    key, certificate = root() / "lambda.key", root() / "lambda.pem"
    words = f"-x509 -newkey rsa:2048 -nodes -days 30 -subj /CN={HOST} -addext subjectAltName=DNS:{HOST}"
    command = ["openssl", "req", *words.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    os.environ["REQUESTS_CA_BUNDLE"] = str(certificate)
    with Path("/etc/hosts").open("a") as hosts:  # the world's hosts file
        hosts.write(f"{ADDRESS} {HOST}\n")
    credentials = Path.home() / ".lambda_cloud/lambda_keys"
    credentials.parent.mkdir()
    credentials.write_text(f"api_key = {KEY}\n")
    credentials.chmod(0o600)
    _write_catalog(Path.home() / ".sky/catalogs/v8/lambda/vms.csv")
    with running([sys.executable, "-m", "tests.placement.cloud.lambda_cloud"]):
        until(_answers, "Lambda")
        yield


def _write_catalog(path: Path) -> None:
    columns = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice"
    rows = [
        [name, kind.chip or None, kind.chips or None, kind.cpus, kind.memory_gb, kind.price, region, None, None]
        for name, kind in TYPES.items()
        for region in REGIONS
    ]
    path.parent.mkdir(parents=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns.split(","), *rows])


def _ask(method: str, path: str, data: Any = None) -> Any:
    words = {"Authorization": f"Bearer {KEY}"}
    answer = requests.request(method, f"https://{HOST}/api/v1/{path}", headers=words, json=data, timeout=30)
    answer.raise_for_status()
    return answer.json()["data"]


def _answers() -> bool:
    try:
        return instances() == []
    except requests.ConnectionError:
        return False
