"""Lambda's GPU cloud on one machine: the part of its REST API that SkyPilot calls, and a machine for each instance.

The machines are real; the responses are simulated in the format of Lambda's published API. When the process ends,
the instances are lost and their machines are stopped.
"""

import itertools
import json
import ssl
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from tests.placement.cloud.aws import say
from tests.placement.cloud.lambda_account import ADDRESS, KEY, REGIONS, SOLD_OUT, TYPES, Rules
from tests.placement.cloud.machine import Machine, boot
from tests.placement.world import root

NO_CAPACITY = "instance-operations/launch/insufficient-capacity"
ERRORS = {  # status and message
    "global/invalid-api-key": (401, "API key was invalid, expired, or deleted."),
    "global/account-inactive": (403, "Your account is inactive."),
    "global/invalid-parameters": (400, "Invalid request data."),
    "global/object-does-not-exist": (404, "Specified object does not exist."),
    "global/duplicate": (400, "An object with this name exists."),
    "global/quota-exceeded": (400, "Quota exceeded."),
    "global/too-many-requests": (429, "Too many requests."),
    NO_CAPACITY: (400, "Not enough capacity to fulfill launch request."),
}


class Refused(Exception):
    """An error with its code."""


@dataclass
class Instance:
    """A rented machine."""

    name: str
    region: str
    kind: str
    key: str  # the name of an SSH key
    addresses: tuple[str, str]  # public and private
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    status: str = "booting"

    def shown(self) -> dict[str, Any]:
        public, private = self.addresses if self.status != "booting" else (None, None)
        words = {"id": self.id, "name": self.name, "status": self.status, "ip": public, "private_ip": private}
        place = {"region": {"name": self.region, "description": ""}, "instance_type": {"name": self.kind}}
        return words | place | {"ssh_key_names": [self.key]}


class Account:
    """The instances and keys of the account. Handlers receive a request's data and return that of the response."""

    def __init__(self) -> None:
        self.running: dict[str, Instance] = {}  # keyed by id
        self.machines: dict[str, Machine] = {}
        self.ssh_keys: dict[str, str] = {}  # keyed by name
        self.numbers = itertools.count(1)

    def types(self, _: Any) -> Any:
        found = {}
        for name, kind in TYPES.items():
            specs = {"vcpus": kind.cpus, "memory_gib": kind.memory_gb, "gpus": kind.chips}
            room = [{"name": each, "description": ""} for each in REGIONS if self._full(each, name) != NO_CAPACITY]
            words = {"name": name, "price_cents_per_hour": round(100 * kind.price), "specs": specs}
            found[name] = {"instance_type": words, "regions_with_capacity_available": room}
        return found

    def launch(self, data: Any) -> Any:
        region, kind, (key,) = data["region_name"], data["instance_type_name"], data["ssh_key_names"]
        if data["quantity"] != 1 or len(data["name"]) > 64:
            raise Refused("global/invalid-parameters")
        if region not in REGIONS or kind not in TYPES or key not in self.ssh_keys:
            raise Refused("global/object-does-not-exist")
        code = self._full(region, kind)
        say(f"launch {region} {kind}: {code or 'granted'}")
        if code:
            raise Refused(NO_CAPACITY if code == SOLD_OUT else code)
        number = next(self.numbers)
        new = Instance(data["name"], region, kind, key, (f"198.51.100.{number}", f"10.19.0.{number}"))
        self.running[new.id] = new
        return {"instance_ids": [new.id]}

    def terminate(self, data: Any) -> Any:
        """Terminate the instances. SkyPilot sends an empty list after each refused launch, and gives up if the request
        fails."""
        if not self.running.keys() >= set(data["instance_ids"]):
            raise Refused("global/object-does-not-exist")
        ended = [self.running[each] for each in data["instance_ids"]]
        for each in ended:
            each.status = "terminating"
        return {"terminated_instances": [each.shown() for each in ended]}

    def instances(self, _: Any) -> Any:
        return [each.shown() for each in self.running.values()]

    def keys(self, _: Any) -> Any:
        return [{"id": name, "name": name, "public_key": key} for name, key in self.ssh_keys.items()]

    def add_key(self, data: Any) -> Any:
        if data["name"] in self.ssh_keys:
            raise Refused("global/duplicate")
        self.ssh_keys[data["name"]] = data["public_key"]
        return {"id": data["name"]} | data

    def _full(self, region: str, kind: str) -> str:
        """Return the error code of the first limit that the request would exceed, or ""."""
        for words, room in Rules.read().capacity.items():
            limited = set(words.split("/"))
            if limited <= {region, kind}:
                if isinstance(room, str):
                    return room
                if sum(limited <= {each.region, each.kind} for each in self.running.values()) >= room:
                    return NO_CAPACITY
        return ""

    def supervise(self) -> None:
        """Keep one machine for each instance, and none otherwise."""
        stuck = set(Rules.read().stuck)
        for each in list(self.running.values()):
            if each.status == "booting" and not {each.region, each.kind} & stuck:
                self.machines[each.id] = boot(each.id, TYPES[each.kind], *each.addresses, [self.ssh_keys[each.key]])
                each.status = "active"
                say(f"{each.id} on: {each.region} {each.kind} {' '.join(each.addresses)}")
            elif each.status == "terminating":
                if machine := self.machines.pop(each.id, None):
                    machine.stop()
                del self.running[each.id]
                say(f"{each.id} off: {each.region}")


ROUTES = {
    "GET /api/v1/instance-types": Account.types,
    "GET /api/v1/instances": Account.instances,
    "POST /api/v1/instance-operations/launch": Account.launch,
    "POST /api/v1/instance-operations/terminate": Account.terminate,
    "GET /api/v1/ssh-keys": Account.keys,
    "POST /api/v1/ssh-keys": Account.add_key,
}


class Handler(BaseHTTPRequestHandler):
    timeout = 10
    account = Account()

    def answer(self) -> None:
        try:
            status, content = 200, {"data": self._done()}
        except Refused as refused:
            code = str(refused)
            status, message = ERRORS[code]
            content = {"error": {"code": code, "message": message, "suggestion": ""}}
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def _done(self) -> Any:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if code := Rules.read().everything:
            raise Refused(code)
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            raise Refused("global/invalid-api-key")
        if (route := f"{self.command} {self.path}") not in ROUTES:
            raise Refused("global/object-does-not-exist")
        return ROUTES[route](self.account, json.loads(body or "null"))

    def log_message(self, format: str, *words: Any) -> None:
        """Suppress the log of requests."""


class Server(HTTPServer):
    """A server with a single thread, since a machine ends with the thread that started it."""

    def service_actions(self) -> None:
        Handler.account.supervise()


def main() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(root() / "lambda.pem", root() / "lambda.key")
    server = Server((ADDRESS, 443), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever(poll_interval=0.25)


if __name__ == "__main__":
    main()
