"""SkyPilot's API server for tests: a real HTTP server that implements the protocol of SkyPilot's client. It keeps
managed jobs in a list without running them, and a test can delay its answers."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

import sky
from sky.jobs.state import ManagedJobStatus
from sky.schemas.api.responses import ManagedJobRecord
from sky.server import constants
from sky.server.requests import payloads
from sky.server.requests.requests import Request, RequestStatus

HEADERS = {constants.API_VERSION_HEADER: str(constants.API_VERSION), constants.VERSION_HEADER: sky.__version__}
NAMES = {"/jobs/launch": "jobs.launch", "/jobs/cancel": "jobs.cancel", "/jobs/queue/v2": "jobs.queue_v2"}


@dataclass
class ApiServer:
    """The test's interface to SkyPilot's API server."""

    url: str = ""
    jobs: list[ManagedJobRecord] = field(default_factory=list)
    clouds: list[str] = field(default_factory=lambda: ["Slurm"])  # clouds that the server has access to
    log: str = ""  # the log of every job
    refuses: Exception | None = None  # the error of a launch
    fails: Exception | None = None  # the error of a job query
    asked: list[str] = field(default_factory=list)  # requested paths, in order of arrival
    _closed: dict[str, threading.Event] = field(default_factory=dict)  # paths whose answers are delayed
    _requests: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)  # open and finished requests
    _done: set[str] = field(default_factory=set)
    _numbers: "count[int]" = field(default_factory=lambda: count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def hanging(self, path: str) -> Iterator[None]:
        """Delay all answers for a path until the end of the block. For "launch", the server accepts the request and
        does not finish it."""
        gate = self._closed[path] = threading.Event()
        try:
            yield
        finally:
            del self._closed[path]
            gate.set()

    def forget(self) -> None:
        """Reset the jobs, the log, the errors and the requested paths."""
        self.jobs, self.log, self.refuses, self.fails, self.asked = [], "", None, None, []

    def statuses(self) -> list[str]:
        return [str(record.status.value) for record in self.jobs if record.status]

    def end(self, status: str, **more: Any) -> None:
        """End the newest job."""
        self.jobs[-1] = self.jobs[-1].model_copy(update={"status": ManagedJobStatus(status), "end_at": 1.0} | more)

    def change(self, status: str, **more: Any) -> None:
        """Change the state of the newest job."""
        self.jobs[-1] = self.jobs[-1].model_copy(update={"status": ManagedJobStatus(status)} | more)

    def wait_at(self, path: str) -> None:
        if gate := self._closed.get(path):
            gate.wait(120)

    def begin(self, name: str, body: dict[str, Any]) -> str:
        request = f"request-{next(self._numbers)}"
        self._requests[request] = (name, body)
        return request

    def open_launches(self) -> list[dict[str, Any]]:
        """Return the launches that have not ended. If the server's executors have ended, its launches never start."""
        status = RequestStatus.PENDING if "/api/get" in self._closed else RequestStatus.RUNNING
        return [
            payload(request, name, status, json.dumps(body))
            for request, (name, body) in self._requests.items()
            if (name == "jobs.launch" and request not in self._done) or status == RequestStatus.PENDING
        ]

    def result(self, number: str) -> dict[str, Any]:
        """Return the result of a request."""
        name, body = self._requests[number]
        if name == "jobs.launch":
            self.wait_at("launch")
        request = Request(number, f"sky.{name}", len, payloads.RequestBody(), RequestStatus.SUCCEEDED, 0.0, "me")
        with self._lock:
            again = number in self._done
            self._done.add(number)
            if name == "jobs.launch" and self.refuses is not None:
                request.status = RequestStatus.FAILED
                request.set_error(self.refuses)
            elif name == "jobs.launch" and not again:
                job = ManagedJobRecord(job_id=len(self.jobs) + 1, job_name=body["name"], user_yaml=body["task"])
                self.jobs.append(job.model_copy(update={"status": ManagedJobStatus.RUNNING}))
                request.set_return_value(([job.job_id], None))
            elif name == "jobs.cancel":
                for index, job in enumerate(self.jobs):
                    if job.job_id in body["job_ids"] and not job.status.is_terminal():  # type: ignore[union-attr]
                        self.jobs[index] = job.model_copy(update={"status": ManagedJobStatus.CANCELLED})
            elif name == "enabled_clouds":
                request.set_return_value(self.clouds)
            elif name == "jobs.queue_v2" and self.fails is not None:
                request.status = RequestStatus.FAILED
                request.set_error(self.fails)
            elif name == "jobs.queue_v2":
                found = [ManagedJobRecord(**job.model_dump(by_alias=True)) for job in self.jobs]
                request.set_return_value((found, len(found), {}, len(found)))
        return request.encode().model_dump()


def payload(number: str, name: str, status: RequestStatus, body: str) -> dict[str, Any]:
    """Return a request as it appears in a list of requests."""
    return payloads.RequestPayload(
        request_id=number,
        name=f"sky.{name}",
        entrypoint="",
        request_body=body,
        status=status.value,
        created_at=0.0,
        user_id="me",
        return_value="null",
        error="null",
        pid=None,
        schedule_type="long",
    ).model_dump()


@contextmanager
def api_server() -> Iterator[ApiServer]:
    state = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            state.asked.append(parts.path)
            state.wait_at(parts.path)
            if parts.path == "/api/get":
                answer = state.result(parse_qs(parts.query)["request_id"][0])
                failed = answer["status"] == "FAILED"
                self.answer({"detail": answer} if failed else answer, status=500 if failed else 200)
            elif parts.path == "/api/status":
                self.answer(state.open_launches())
            elif parts.path == "/enabled_clouds":
                self.answer(None, request=state.begin("enabled_clouds", {}))
            else:
                words = {"status": "healthy", "api_version": str(constants.API_VERSION), "version": sky.__version__}
                self.answer(words | {"version_on_disk": sky.__version__, "commit": sky.__commit__})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.asked.append(self.path)
            state.wait_at(self.path)
            if self.path == "/jobs/logs":
                self.answer(state.log, request=state.begin("jobs.logs", body))
            elif self.path == "/validate":
                self.answer({})
            else:
                names = {
                    "/jobs/launch": "jobs.launch",
                    "/jobs/cancel": "jobs.cancel",
                    "/jobs/queue/v2": "jobs.queue_v2",
                }
                self.answer(None, request=state.begin(names[self.path], body))

        def answer(self, what: Any, status: int = 200, request: str = "") -> None:
            content = what.encode() if isinstance(what, str) else json.dumps(what).encode()
            self.send_response(status)
            headers = {
                constants.API_VERSION_HEADER: str(constants.API_VERSION),
                constants.VERSION_HEADER: sky.__version__,
            }
            headers |= {"X-Skypilot-Request-ID": request} if request else {}
            for name, value in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *words: Any) -> None:
            """Suppress the log of requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()


def until(true: Any, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, true
        time.sleep(0.05)
