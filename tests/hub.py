"""A Hugging Face hub on this machine: the HTTP API that huggingface_hub's client uses, for repositories of models and
datasets with commits, large files (LFS, single and in parts), private repositories and tokens.

    with hub_server() as hub:
        subprocess.run(…, env=os.environ | hub.environment())

The client reads HF_ENDPOINT when it is imported: in this process, `hub.used_here` sets what it has read.
"""

import base64
import hashlib
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml

TOKEN = "hf_" + "w" * 34  # of the user who may write to USER/…
READER = "hf_" + "r" * 34  # of a user who may write nowhere
USER = "team"
PART_BYTES = 1 << 20  # larger files are uploaded in parts of this size
LARGE = (".safetensors", ".bin", ".jsonl")  # as a repository's .gitattributes would say


@dataclass
class Repository:
    kind: str  # model or dataset
    name: str
    private: bool
    commits: list[tuple[str, str, dict[str, bytes]]] = field(default_factory=list)  # id, title, content by name
    large: set[str] = field(default_factory=set)  # names of LFS files

    @property
    def head(self) -> str:
        return self.commits[-1][0]

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1][2]

    def at(self, revision: str) -> dict[str, bytes] | None:
        if revision == "main":
            return self.files
        return next((files for commit, _, files in self.commits if commit == revision), None)

    def commit(self, title: str, files: dict[str, bytes]) -> str:
        """Add a commit with these files; a change by somebody else, in a test."""
        self.commits.append((hashlib.sha1(uuid.uuid4().bytes).hexdigest(), title, files))
        return self.head

    def entry(self, name: str, content: bytes) -> dict[str, Any]:
        """Return a file as the API lists it."""
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        listed: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": blob}
        if name in self.large:
            pointed = hashlib.sha256(content).hexdigest()
            listed["lfs"] = {"oid": pointed, "size": len(content), "pointerSize": 130}
        return listed


@dataclass
class Hub:
    """The server's state, and a log of its requests."""

    endpoint: str
    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # LFS files by SHA-256
    parts: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)  # "PUT /lfs/…"
    fault: Callable[[str], int | None] = lambda request: None  # the status with which a request fails; 0 cuts it off

    def environment(self, token: str = TOKEN, **more: str) -> dict[str, str]:
        """Return the variables of a client. Its retries of a failed request are its own."""
        return {"HF_ENDPOINT": self.endpoint, "HF_HUB_OFFLINE": "0", "HF_TOKEN": token} | more

    def used_here(self, monkeypatch: pytest.MonkeyPatch, token: str = TOKEN) -> None:
        """Let the client in this process use this hub."""
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "ENDPOINT", self.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", token)

    def model(self, name: str) -> Repository:
        return self.repositories["model", name]

    def dataset(self, name: str) -> Repository:
        return self.repositories["dataset", name]

    def create(self, kind: str, name: str, private: bool, files: dict[str, bytes] | None = None) -> Repository:
        made = self.repositories[kind, name] = Repository(kind, name, private)
        made.commit("initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"} | (files or {}))
        return made

    def count(self, pattern: str) -> int:
        """Return how many requests match a pattern."""
        return sum(bool(re.match(pattern, request)) for request in self.requests)


@contextmanager
def hub_server() -> Iterator[Hub]:
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub = Hub(f"http://127.0.0.1:{server.server_port}")
    handler.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[Hub]
    protocol_version = "HTTP/1.1"
    headers: Message

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self._handle()

    do_HEAD = do_POST = do_PUT = do_GET

    def _handle(self) -> None:
        request = f"{self.command} {unquote(self.path)}"
        self.hub.requests.append(request)
        self.body = self._read()
        fault = self.hub.fault(request)
        if fault is not None:
            return self._refuse(fault, "a fault of the test") if fault else self._cut()
        path = urlsplit(unquote(self.path)).path
        for pattern, work in _ROUTES:
            command, _, route = pattern.partition(" ")
            if self.command in command.split("|") and (found := re.fullmatch(route, path)):
                return work(self, *found.groups())
        self._refuse(404, f"no such route: {request}")

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def _cut(self) -> None:
        self.close_connection = True

    def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, message: str, code: str = "") -> None:
        self._answer({"error": message}, status, **({"X_Error_Code": code} if code else {}))

    @property
    def token(self) -> str:
        return str(self.headers.get("Authorization", "")).removeprefix("Bearer ")

    def _may_write(self, name: str) -> bool:
        return self.token == TOKEN and name.startswith(f"{USER}/")

    def _found(self, kind: str, name: str, write: bool = False) -> Repository | None:
        """Return a repository that the client may see, or answer as the hub does."""
        repository = self.hub.repositories.get((kind, name))
        if self.token not in ("", TOKEN, READER):
            self._refuse(401, "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and not self._may_write(name)):
            self._refuse(404 if self.token else 401, "Repository not found", "RepoNotFound")
        elif write and not self._may_write(name):
            self._refuse(403, "You don't have the rights to write to this repository")
        else:
            return repository
        return None

    # -- repositories ---------------------------------------------------------------------------------

    def create(self) -> None:
        asked = json.loads(self.body)
        owner = asked["organization"] or USER
        kind, name = asked.get("type") or "model", f"{owner}/{asked['name']}"
        if self.token not in (TOKEN, READER):
            return self._refuse(401, "Invalid credentials in Authorization header")
        if not self._may_write(name):
            return self._refuse(403, f"You don't have the rights to create a {kind} under the namespace {owner!r}")
        url = f"{self.hub.endpoint}/{'datasets/' if kind == 'dataset' else ''}{name}"
        if (kind, name) in self.hub.repositories:
            return self._answer({"error": f"You already created this {kind} repo", "url": url}, 409)
        self.hub.create(kind, name, asked.get("visibility") == "private")
        self._answer({"url": url})

    def info(self, kind: str, name: str, revision: str | None = None) -> None:
        if repository := self._found(kind, name):
            files = repository.at(revision or "main")
            if files is None:
                return self._refuse(404, "Revision not found", "RevisionNotFound")
            text = files.get("README.md", b"").decode()
            card = yaml.safe_load(text.split("---\n")[1]) if text.startswith("---\n") else {}
            self._answer({
                "id": name, "sha": repository.head, "private": repository.private, "tags": card.get("tags", []),
                "cardData": card, "siblings": [{"rfilename": each} for each in files], "downloads": 0, "likes": 0,
                "disabled": False, "gated": False, "author": name.split("/", maxsplit=1)[0],
                "lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z",
            })  # fmt: skip

    def tree(self, kind: str, name: str, revision: str) -> None:
        if repository := self._found(kind, name):
            files = repository.at(revision) or {}
            self._answer([repository.entry(each, content) for each, content in sorted(files.items())])

    def paths(self, kind: str, name: str, revision: str) -> None:
        if repository := self._found(kind, name):
            asked, files = parse_qs(self.body.decode())["paths"], repository.at(revision) or {}
            self._answer([repository.entry(each, files[each]) for each in asked if each in files])

    def resolve(self, prefix: str | None, name: str, revision: str, file: str) -> None:
        if not (repository := self._found("dataset" if prefix else "model", name)):
            return
        content = (repository.at(revision) or {}).get(file)
        if content is None:
            return self._refuse(404, "Entry not found", "EntryNotFound")
        listed = repository.entry(file, content)
        etag = listed["lfs"]["oid"] if "lfs" in listed else listed["oid"]
        self._answer(content, X_Repo_Commit=repository.head, ETag=f'"{etag}"')

    # -- uploads --------------------------------------------------------------------------------------

    def validate(self) -> None:
        front = json.loads(self.body)["content"].split("---\n")[1]
        try:
            yaml.safe_load(front)
        except yaml.YAMLError as error:
            return self._answer({"errors": [{"message": str(error)}], "warnings": []}, 400)
        self._answer({"errors": [], "warnings": []})

    def preupload(self, kind: str, name: str, revision: str) -> None:
        if not (repository := self._found(kind, name, write=True)):
            return
        answers = []
        for asked in json.loads(self.body)["files"]:
            is_large = asked["path"].endswith(LARGE) or asked["size"] > 10_000_000
            content = repository.files.get(asked["path"])
            known = repository.entry(asked["path"], content) if content is not None else {}
            oid = known["lfs"]["oid"] if "lfs" in known else known.get("oid")
            mode = "lfs" if is_large else "regular"
            answers.append({"path": asked["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._answer({"files": answers})

    def batch(self, prefix: str | None, name: str) -> None:
        if not self._found("dataset" if prefix else "model", name, write=True):
            return
        objects = []
        for asked in json.loads(self.body)["objects"]:
            oid, size = asked["oid"], asked["size"]
            if oid not in self.hub.objects:
                address = f"{self.hub.endpoint}/lfs/{oid}"
                upload: dict[str, Any] = {"href": address}
                if size > PART_BYTES:
                    numbers = range(1, -(-size // PART_BYTES) + 1)
                    header = {str(number): f"{address}/{number}" for number in numbers}
                    upload = {"href": f"{address}/complete", "header": header | {"chunk_size": str(PART_BYTES)}}
                verify = {"href": f"{self.hub.endpoint}/lfs/{oid}/verify"}
                asked |= {"actions": {"upload": upload, "verify": verify}}
            objects.append(asked)
        self._answer({"transfer": "multipart", "objects": objects})

    def put(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self._refuse(400, "the content has another SHA-256")
        self.hub.objects[oid] = self.body
        self._answer({})

    def put_part(self, oid: str, number: str) -> None:
        self.hub.parts[f"{oid}/{number}"] = self.body
        self._answer({}, ETag=f'"{number}"')

    def complete(self, oid: str) -> None:
        numbers = [part["partNumber"] for part in json.loads(self.body)["parts"]]
        content = b"".join(self.hub.parts.pop(f"{oid}/{number}") for number in numbers)
        if hashlib.sha256(content).hexdigest() != oid:
            return self._refuse(400, "the content has another SHA-256")
        self.hub.objects[oid] = content
        self._answer({})

    def verify(self, oid: str) -> None:
        stored = len(self.hub.objects.get(oid, b"")) == json.loads(self.body)["size"]
        self._answer({}) if stored else self._refuse(404, "not stored")

    def commit(self, kind: str, name: str, revision: str) -> None:
        if not (repository := self._found(kind, name, write=True)):
            return
        head, *operations = [json.loads(line) for line in self.body.splitlines()]
        if (parent := head["value"].get("parentCommit")) and parent != repository.head:
            return self._refuse(412, "A commit has happened since. Please refresh and try again.")
        files = {**repository.files}
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "deletedFile":
                del files[value["path"]]
            elif operation["key"] == "lfsFile":
                repository.large.add(value["path"])
                files[value["path"]] = self.hub.objects[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        repository.commit(head["value"]["summary"], files)
        url = f"{self.hub.endpoint}/{name}/commit/{repository.head}"
        self._answer({"commitUrl": url, "commitOid": repository.head, "success": True})

    def whoami(self) -> None:
        if self.token not in (TOKEN, READER):
            return self._refuse(401, "Invalid credentials in Authorization header")
        role = "write" if self.token == TOKEN else "read"
        self._answer(
            {
                "type": "user",
                "name": USER if self.token == TOKEN else "reader",
                "orgs": [{"name": "guests"}],
                "auth": {"accessToken": {"role": role}},
            }
        )


_NAME = r"([\w.-]+/[\w.-]+)"
_ROUTES: tuple[tuple[str, Callable[..., None]], ...] = (
    ("POST /api/repos/create", _Handler.create),
    ("POST /api/validate-yaml", _Handler.validate),
    ("GET /api/whoami-v2", _Handler.whoami),
    (rf"GET /api/(model|dataset)s/{_NAME}", _Handler.info),
    (rf"GET /api/(model|dataset)s/{_NAME}/revision/(.+)", _Handler.info),
    (rf"GET /api/(model|dataset)s/{_NAME}/tree/([^/]+)", _Handler.tree),
    (rf"POST /api/(model|dataset)s/{_NAME}/paths-info/([^/]+)", _Handler.paths),
    (rf"POST /api/(model|dataset)s/{_NAME}/preupload/([^/]+)", _Handler.preupload),
    (rf"POST /api/(model|dataset)s/{_NAME}/commit/([^/]+)", _Handler.commit),
    (rf"POST /(datasets/)?{_NAME}\.git/info/lfs/objects/batch", _Handler.batch),
    (r"PUT /lfs/([0-9a-f]{64})", _Handler.put),
    (r"PUT /lfs/([0-9a-f]{64})/(\d+)", _Handler.put_part),
    (r"POST /lfs/([0-9a-f]{64})/complete", _Handler.complete),
    (r"POST /lfs/([0-9a-f]{64})/verify", _Handler.verify),
    (rf"GET|HEAD /(datasets/)?{_NAME}/resolve/([^/]+)/(.+)", _Handler.resolve),
)
