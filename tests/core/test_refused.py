"""A refusal by a store ends the work at once with the store's message; errors that may be temporary are retried. The
store is an HTTP server that answers every request with the same error, in the format of S3."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from baton.infra.storage import buckets
from baton.infra.storage.buckets import StorageError
from tests.s3 import S3, Faults, disturbed, s3_server

ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{words}</Message></Error>"


@contextmanager
def store(status: int, code: str, words: str, answers: int = 10**6) -> Iterator[tuple[S3, list[str]]]:
    """Serve a store that answers the first requests with an error and all others with success; also yields the
    requests."""
    asked: list[str] = []

    class Store(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(f"{self.command} {self.path}")
            is_error = len(asked) <= answers
            body = ERROR.format(code=code, words=words).encode() * (is_error and self.command != "HEAD")
            self.send_response(status if is_error else 200)
            for name, value in {"Content-Type": "application/xml", "Content-Length": len(body), "ETag": '"0"'}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        def log_message(self, format: str, *words: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield S3(f"http://127.0.0.1:{server.server_port}", "s3://flyte"), asked
    finally:
        server.shutdown()
        server.server_close()


def put(place: str, folder: Path) -> None:
    (folder / "weights").write_bytes(b"0" * 4000)
    buckets.put(folder, ["weights"], place)


ACTIONS: list[Callable[[str, Path], object]] = [
    put,
    lambda place, _: buckets.write(f"{place}/note", b"1"),
    lambda place, _: buckets.read(f"{place}/note"),
    lambda place, _: buckets.sizes(place),
    lambda place, _: buckets.delete(place, ["note"]),
]


@pytest.mark.parametrize("action", ACTIONS)
def test_what_a_store_refuses_ends_at_once_with_its_words(
    action: Callable[[str, Path], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    words = r"refuses the request: (InvalidArgument: x-amz-checksum is not supported|400: Bad Request) \(HTTP 400\)"
    with (
        store(400, "InvalidArgument", "x-amz-checksum is not supported.") as (s3, _),
        s3.flyte(tmp_path),
        pytest.raises(StorageError, match=words),
    ):
        action(s3.address, tmp_path)
    assert time.monotonic() - began < 10
    assert "0 of 0" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "AccessDenied", "credentials"),
        (404, "NoSuchBucket", "Create the bucket"),
        (405, "MethodNotAllowed", "MethodNotAllowed"),
        (501, "NotImplemented", "the storage refuses the request: NotImplemented"),
        (400, "AuthorizationHeaderMalformed", "FLYTE_AWS_ENDPOINT and AWS_DEFAULT_REGION"),
    ],
)
def test_each_refusal_has_its_way_out(tmp_path: Path, status: int, code: str, said: str) -> None:
    with (
        store(status, code, "why") as (s3, asked),
        s3.flyte(tmp_path),
        pytest.raises(StorageError, match=said) as refused,
    ):
        put(s3.address, tmp_path)
    assert not refused.value.curable
    assert len(asked) <= 6


@pytest.mark.long
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (503, "ServiceUnavailable"),
        (429, "TooManyRequests"),
        (400, "RequestTimeout"),
        (403, "RequestTimeTooSkewed"),
        (409, "OperationAborted"),
    ],
)
def test_what_may_pass_is_tried_again(tmp_path: Path, status: int, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(buckets, "LONGEST_WAIT_S", 0.1)
    with store(status, code, "later", answers=12) as (s3, asked), s3.flyte(tmp_path):
        put(s3.address, tmp_path)
    assert len(asked) > 12


class AzureError(Exception):
    """An error like azure-core's."""

    status_code = 400


class GoogleError(Exception):
    """An error like gcsfs's."""

    code = 400


@pytest.mark.parametrize("error", [AzureError("InvalidBlobType"), GoogleError("invalid, 400")])
def test_other_stores_refusals_have_a_status_too(error: Exception) -> None:
    def refused() -> None:
        raise error

    with pytest.raises(StorageError, match=r"the storage refuses the request: .*\(HTTP 400\)"):
        buckets.with_retries(refused, "gs://bucket/x")


def test_a_download_that_is_cut_off_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The download is retried more often than s3fs does by itself. aiohttp's error for this case has the code 400,
    which no store has sent."""
    monkeypatch.setattr(buckets, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(buckets, "LONGEST_WAIT_S", 0.1)
    with s3_server(tmp_path) as server:
        with server.flyte(tmp_path):
            buckets.write(f"{server.address}/note", b"1" * 1000)
        with disturbed(server, faults := Faults(cut=12, about="GET .*/note")) as s3, s3.flyte(tmp_path):
            assert buckets.read(f"{s3.address}/note") == b"1" * 1000
    assert faults.cut == 0
