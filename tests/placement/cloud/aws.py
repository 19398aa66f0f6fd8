"""AWS on one machine: moto's API, checked against a table of capacity, and a machine for each running instance.

The API's protocol (EC2, S3, IAM, STS) and the machines are real. Capacity, quotas, and refused keys and buckets are
simulated: world.py writes them to `aws.json` in the world's folder. moto keeps its state only in memory.
"""

import io
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import parse_qs

from tests.placement.cloud.account import TYPES
from tests.placement.cloud.machine import Machine, boot
from tests.placement.cloud.rules import InFile

ACCOUNT = "123456789012"
UNLIMITED = 10**6
MESSAGES = {
    "InsufficientInstanceCapacity": "We currently do not have sufficient {kind} capacity in the Availability Zone you "
    "requested ({zone}).",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the "
    "instance bucket that the specified instance type belongs to.",
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
    "AuthFailure": "AWS was not able to validate the provided access credentials",
    "InvalidClientTokenId": "The security token included in the request is invalid.",
    "InvalidAccessKeyId": "The AWS Access Key Id you provided does not exist in our records.",
    "AccessDenied": "Access Denied",
    "InvalidRequest": "The request is not valid for this bucket.",
}
STATUS = {"InsufficientInstanceCapacity": 500, "AuthFailure": 401, "InvalidRequest": 400, "VcpuLimitExceeded": 400}
STATUS |= {"MaxSpotInstanceCountExceeded": 400}
EC2_ERROR = (
    "<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
    "<RequestID>0</RequestID></Response>"
)
STS_ERROR = (
    "<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
    "<RequestId>0</RequestId></ErrorResponse>"
)
S3_ERROR = "<Error><Code>{code}</Code><Message>{message}</Message><RequestId>0</RequestId></Error>"
App = Callable[[dict[str, Any], Any], Iterable[bytes]]


@dataclass
class Rules(InFile):
    """The refusals of this cloud."""

    file: ClassVar[str] = "aws.json"

    # the maximum number of instances or an error's code, by place: "us-east-1", "us-west-2/spot", "m6i.large"
    capacity: dict[str, int | str] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)  # prefixes of the ids of invalid access keys
    buckets: dict[str, str] = field(default_factory=dict)  # error codes by bucket
    disk_gb: float = 1e6  # the maximum disk size of each machine


def instances() -> Iterator[tuple[str, Any]]:
    """Return the instances of all regions, including those that have ended."""
    from moto.ec2.models import ec2_backends

    for region, backend in list(ec2_backends[ACCOUNT].items()):
        for reservation in list(backend.reservations.values()):
            for instance in reservation.instances:
                yield region, instance


def market(instance: Any) -> str:
    return "spot" if instance.lifecycle == "spot" else "on-demand"


class Front:
    """A WSGI layer that checks the rules before it passes a request on to moto."""

    def __init__(self, app: App) -> None:
        self.app = app

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        signed = re.search(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        refused = self._refused(environ, *signed.groups()) if signed else None
        if refused is None:
            return self.app(environ, start)
        code, template, message = refused
        content = template.format(code=code, message=message).encode()
        start(f"{STATUS.get(code, 403)} {code}", [("Content-Type", "text/xml"), ("Content-Length", str(len(content)))])
        return [content]

    def _refused(self, environ: dict[str, Any], key: str, region: str, service: str) -> tuple[str, str, str] | None:
        """Return the code, template and message of the error, or None."""
        rules = Rules.read()
        form = {"ec2": EC2_ERROR, "s3": S3_ERROR}.get(service, STS_ERROR)
        if any(map(key.startswith, rules.keys)):
            code = {"ec2": "AuthFailure", "s3": "InvalidAccessKeyId"}.get(service, "InvalidClientTokenId")
            return code, form, MESSAGES[code]
        if service == "s3" and (code := rules.buckets.get(environ["PATH_INFO"].lstrip("/").partition("/")[0], "")):
            return code, form, MESSAGES[code]
        if service != "ec2" or environ["REQUEST_METHOD"] != "POST":
            return None
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        asked = {name: values[0] for name, values in parse_qs(body.decode("latin1")).items()}
        if asked.get("Action") != "RunInstances":
            return None
        kind = asked.get("InstanceType", "")
        spot = "spot" if any(name.endswith("MarketType") for name in asked) else "on-demand"
        zone = asked.get("Placement.AvailabilityZone", "")
        code = self._full(rules, {region, kind, spot}, int(asked.get("MinCount", 1)))
        say(f"RunInstances {region} {zone} {kind} {spot}: {code or 'granted'}")
        return (code, form, MESSAGES[code].format(kind=kind, zone=zone)) if code else None

    def _full(self, rules: Rules, place: set[str], more: int) -> str:
        """Return the error code of the first limit that the request would exceed, or ""."""
        for words, room in rules.capacity.items():
            limited = set(words.split("/"))
            if limited <= place:
                if isinstance(room, str):
                    return room
                there = sum(
                    limited <= {region, each.instance_type, market(each)} and each._state.name in ("pending", "running")
                    for region, each in instances()
                )
                if there + more > room:
                    return "InsufficientInstanceCapacity"
        return ""


def hypervisor() -> None:
    """Keep one machine for each running instance, and none otherwise."""
    machines: dict[str, Machine] = {}
    while True:
        time.sleep(0.25)
        for region, each in list(instances()):
            runs = each._state.name == "running"
            if runs and each.id not in machines:
                text = each.user_data.decode() if each.user_data else ""
                keys = re.findall(r"ssh-(?:rsa|ed25519) [\w+/=]+", text)
                disk = min(Rules.read().disk_gb, 1e6)
                machines[each.id] = boot(
                    each.id, TYPES[each.instance_type], each.public_ip, each.private_ip, keys, disk
                )
                say(f"{each.id} on: {region} {each.instance_type} {market(each)} {each.public_ip} {each.private_ip}")
            elif not runs and each.id in machines:
                machines.pop(each.id).stop()
                say(f"{each.id} off: {region}")


def say(words: str) -> None:
    print(time.strftime("%H:%M:%S"), words, file=sys.stderr, flush=True)


def main() -> None:
    from moto.iam.policy_validation import BaseIAMPolicyValidator
    from moto.moto_server.threaded_moto_server import make_server  # a Werkzeug server
    from moto.server import DomainDispatcherApplication, create_backend_app

    # AWS accepts a policy without a version, such as SkyPilot's. moto does not, so the first region of an account
    # failed.
    BaseIAMPolicyValidator._validate_version = lambda validator: None  # type: ignore[method-assign]

    def watched() -> None:
        try:
            hypervisor()
        finally:  # no machine outlives the cloud
            import os

            os._exit(1)

    threading.Thread(target=watched, daemon=True).start()
    app = Front(DomainDispatcherApplication(create_backend_app))
    make_server("10.77.0.1", 5000, app, threaded=True).serve_forever()


if __name__ == "__main__":
    main()
