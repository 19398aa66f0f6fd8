"""The AWS account of the tests: its regions, prices and network. The prices are invented; the rest is as on AWS."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import boto3

ENDPOINT = "http://10.77.0.1:5000"  # the world's bridge, which has the same address on every machine
BUCKET = "my-bucket"
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLEOFBATON00",
    "AWS_SECRET_ACCESS_KEY": "ExampleSecretOfBaton/0123456789abcdefghi",
}
REGIONS = {"us-east-1": 1.0, "us-west-2": 1.1, "eu-west-1": 1.2}  # price factors by region


@dataclass(frozen=True)
class Type:
    """An instance type; prices are US dollars an hour in us-east-1."""

    cpus: int
    memory_gb: int
    price: float
    spot: float
    chip: str = ""
    chips: int = 0


TYPES = {
    "m6i.large": Type(2, 8, 0.096, 0.03),
    "m6i.xlarge": Type(4, 16, 0.192, 0.06),
    "m6i.2xlarge": Type(8, 32, 0.384, 0.11),
    "g6.xlarge": Type(4, 16, 0.805, 0.3, "L4", 1),
    "p5.4xlarge": Type(16, 256, 6.88, 2.75, "H100", 1),
    "p4d.24xlarge": Type(96, 1152, 32.77, 9.8, "A100", 8),
    "p5.48xlarge": Type(192, 2048, 98.32, 29.5, "H100", 8),
}


def price(region: str, kind: str, is_spot: bool) -> float:
    each = TYPES[kind]
    return round((each.spot if is_spot else each.price) * REGIONS[region], 4)


@cache  # making a type is slow
def client(service: str, region: str) -> Any:
    words = {"aws_access_key_id": KEYS["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": KEYS["AWS_SECRET_ACCESS_KEY"]}
    return boto3.client(service, region_name=region, endpoint_url=ENDPOINT, **words)


def make_public(region: str) -> None:
    """Give the default network access to the internet, which AWS's accounts have and moto's do not."""
    ec2 = client("ec2", region)
    (vpc,) = (each["VpcId"] for each in ec2.describe_vpcs()["Vpcs"] if each["IsDefault"])
    of_it = [{"Name": "vpc-id", "Values": [vpc]}]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    for table in ec2.describe_route_tables(Filters=of_it)["RouteTables"]:
        ec2.create_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    for subnet in ec2.describe_subnets(Filters=of_it)["Subnets"]:
        ec2.modify_subnet_attribute(SubnetId=subnet["SubnetId"], MapPublicIpOnLaunch={"Value": True})


def write_catalogs(folder: Path) -> None:
    """Write SkyPilot's catalogs of AWS, with two zones in each region."""
    folder.mkdir(parents=True)
    columns = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region"
    rows: list[list[Any]] = [
        [
            *(name, kind.chip or None, kind.chips or None, kind.cpus, kind.memory_gb, ""),
            *(price(region, name, False), price(region, name, True), region, zone["ZoneId"], "x86_64"),
        ]
        for region in REGIONS
        for zone in client("ec2", region).describe_availability_zones()["AvailabilityZones"][:2]
        for name, kind in TYPES.items()
    ]
    _write(folder / "vms.csv", f"{columns},AvailabilityZone,Arch", rows)
    images = ("skypilot:custom-cpu-ubuntu", "skypilot:custom-gpu-ubuntu-cuda13", "skypilot:custom-gpu-ubuntu")
    an_image_of_moto = ["ubuntu", "22.04", "ami-1e749f67", "20260101"]
    rows = [[image, region, *an_image_of_moto] for image in images for region in REGIONS]
    _write(folder / "images.csv", "Tag,Region,OS,OSVersion,ImageId,CreationDate", rows)
    _write(folder / "instance_quota_mapping.csv", "InstanceType,OnDemandCode,SpotInstanceCode", [])


def _write(path: Path, columns: str, rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns.split(","), *rows])
