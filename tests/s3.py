"""An S3 server on this machine (moto's, in a separate process), and a proxy in front of it that disturbs requests."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from flytekit import FlyteContextManager
from flytekit.configuration import DataConfig, S3Config
from flytekit.core.data_persistence import FileAccessProvider

KEY = "test"
BUCKET = "flyte"
HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive"}


@dataclass(frozen=True)
class S3:
    """A server and one of its buckets."""

    endpoint: str
    address: str = f"s3://{BUCKET}"

    def at(self, endpoint: str) -> "S3":
        """Return the same bucket at another endpoint, such as a proxy."""
        return S3(endpoint, self.address)

    def environment(self) -> dict[str, str]:
        """Return the variables that configure Flyte's processes."""
        return {
            "FLYTE_AWS_ENDPOINT": self.endpoint,
            "FLYTE_AWS_ACCESS_KEY_ID": KEY,
            "FLYTE_AWS_SECRET_ACCESS_KEY": KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def keys(self, prefix: str = "") -> dict[str, int]:
        """Return the size in bytes of every object whose key has this prefix."""
        files = self._files()
        files.invalidate_cache()
        found = files.find(BUCKET, prefix=prefix, detail=True)
        return {name.removeprefix(f"{BUCKET}/"): info["size"] for name, info in found.items()}

    def read(self, key: str) -> bytes:
        return bytes(self._files().cat_file(f"{BUCKET}/{key}"))

    def write(self, key: str, content: bytes) -> None:
        self._files().pipe_file(f"{BUCKET}/{key}", content)

    def delete(self, *keys: str) -> None:
        for key in keys:
            self._files().rm_file(f"{BUCKET}/{key}")

    def _files(self) -> Any:
        """Bypass the proxy of the code under test."""
        return self._access(Path(tempfile.gettempdir())).get_filesystem("s3")

    def _access(self, sandbox: Path, pod: str = "e0-n0-0") -> FileAccessProvider:
        config = DataConfig(s3=S3Config(endpoint=self.endpoint, access_key_id=KEY, secret_access_key=KEY))
        return FileAccessProvider(str(sandbox), f"{self.address}/raw/ab/{pod}", data_config=config)

    @contextmanager
    def flyte(self, sandbox: Path, pod: str = "e0-n0-0") -> Iterator[None]:
        """Enter Flyte's context of a pod in this process."""
        context = FlyteContextManager.current_context().with_file_access(self._access(sandbox, pod))
        with FlyteContextManager.with_context(context):
            yield


@contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    port = _free_port()
    with (folder / "moto.log").open("w") as log:
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(words, stdout=log, stderr=log, env=os.environ | {"TMPDIR": str(folder)})
    try:
        _wait_for(port, process)
        server = S3(f"http://127.0.0.1:{port}")
        server._files().mkdir(BUCKET)
        yield server
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"moto's server ended with {process.returncode}")


@dataclass
class Faults:
    """Disturbances that the proxy causes, and the requests that it has seen."""

    refused: int = 0  # number of requests to refuse
    status: int = 503
    cut: int = 0  # number of responses to cut off in the middle; a PUT is not forwarded
    delay_s: float = 0.0  # delay of each request
    about: str = ""  # pattern: only matching requests are disturbed ("PUT .*/artifacts/")
    seen: list[str] = field(default_factory=list)  # "PUT /flyte/…"


@contextmanager
def disturbed(server: S3, faults: Faults) -> Iterator[S3]:
    """Serve the bucket through a proxy."""

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        lock: ClassVar[threading.Lock] = threading.Lock()

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with self.lock:
                line = f"{self.command} {self.path}"
                faults.seen.append(line)
                disturb = re.search(faults.about, line) is not None
                refuse, cut = disturb and faults.refused > 0, disturb and faults.refused == 0 and faults.cut > 0
                faults.refused -= refuse
                faults.cut -= cut
            time.sleep(faults.delay_s if disturb else 0)
            if refuse:
                self._answer(faults.status, {}, b"")
                return
            if cut and self.command == "PUT":
                self.close_connection = True  # no response
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, headers, answer = self._ask(body)
            self._answer(status, headers, answer, len(answer) // 2 if cut else None)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

        def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            upstream = HTTPConnection(server.endpoint.removeprefix("http://"))
            try:
                upstream.request(self.command, self.path, body, dict(self.headers))
                answer = upstream.getresponse()
                return answer.status, dict(answer.headers), answer.read()
            except HTTPException as error:
                return 500, {}, str(error).encode()
            finally:
                upstream.close()

        def _answer(self, status: int, headers: dict[str, str], answer: bytes, cut_at: int | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in HOP_BY_HOP | {"content-length"}:
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(answer))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer[:cut_at])
            if cut_at is not None:
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, *words: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        proxy.daemon_threads = True
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.at(f"http://127.0.0.1:{proxy.server_address[1]}")
        finally:
            proxy.shutdown()
            thread.join()
