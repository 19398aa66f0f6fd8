"""Malformed and hostile HTTP from a seed. The proxy answers 4xx or closes, logs no traceback, reaches no other host,
and continues to serve an honest client. BATON_FUZZ sets the number of connections of the long form."""

import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.serve.followed import awaited
from tests.serve.test_limits import honest_client
from tests.source import ROOT

SHORT, LONG = 400, int(os.environ.get("BATON_FUZZ", "5000"))
CLIENTS = 64
GREW_MB = 60
PATIENCE_S = 60.0  # the limit on a busy machine; the proxy closes after two seconds
METHODS = [
    b"GET",
    b"POST",
    b"PUT",
    b"OPTIONS",
    b"HEAD",
    b"get",
    b"CONNECT",
    b"TRACE",
    b"PRI",
    b"G\x00T",
    b"",
    b"A" * 9000,
]
LINE_ENDS = [b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\r\n", b"\x00\r\n"]
VERSIONS = [
    b" HTTP/1.1",
    b" HTTP/1.1",
    b" HTTP/1.1",
    b" HTTP/1.0",
    b"",
    b" HTTP/0.9",
    b" HTTP/2.0",
    b" HTTP/1.1 x",
    b" http/1.1",
]
LENGTHS = [b"3", b"0", b"-1", b"+3", b"3, 3", b"0x3", b"9" * 40, b"3 ", b"\xb2", b"1_0", b""]
ENCODINGS = [
    b"chunked",
    b"Chunked",
    b"identity",
    b"chunked, identity",
    b"gzip, chunked",
    b"xchunked",
    b" chunked",
    b"\x0bchunked",
]
SIZES = [b"3", b"0", b"-1", b"ffffffffffffffffff", b"3;" + b"x" * 9000, b"0x3", b"g", b" 3", b"3\x00", b""]
HEADERS = [
    b"Connection: close",
    b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
    b"Connection: upgrade, http2-settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__", b"Expect: 100-continue",
    b"Expect: nonsense", b"Host: a\r\nHost: b", b"Host: \xff", b"Host: a b", b": empty", b"no colon", b"x : space",
    b" folded: y", b"x: a\r\n b", b"x: \x00", b"x\x00: y", b"x: " + b"y" * 9000, b"y" * 9000 + b": x", b"x: \xff\xfe",
    b"Content-Encoding: gzip", b"Cookie: a=b", b"Connection: host, content-length", b"Range: bytes=0-1",
]  # fmt: skip


@dataclass
class Other:
    """A host that no request may reach."""

    port: int
    reached: int = 0


@contextmanager
def other_host() -> Iterator[Other]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = Other(listener.getsockname()[1])

        def listen() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return
                other.reached += 1

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield other
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def targets(other: int) -> list[bytes]:
    host = b"127.0.0.1:%d" % other
    return [
        b"/v1/echo", b"/v1/echo", b"/v1/echo?a=b", b"@" + host + b"/", host, b"http://" + host + b"/",
        b"HTTP://" + host, b"//" + host + b"/", b"http:/" + host, b"/@" + host, b"/\\" + host, b"\\\\" + host,
        b"*", b"", b"/%00",
        b"/\x00", b"/..%2f..", b"/../..", b"/a b", b"/\xff", b"/" + b"a" * 9000, b"/#x", b"?x", b"file:///", b"/%zz",
        b"http://[::1", b"http://" + host + b":x/", b"http://a@" + host + b"/", b"/:80@" + host, b"ftp://" + host,
        b"/\r\nx: y", b"http://" + host + b"\\@x/", b"//[",
    ]  # fmt: skip


def odd(draw: random.Random, usual: bytes, strange: list[bytes]) -> bytes:
    return usual if draw.random() < 0.9 else draw.choice(strange)


def chunks(draw: random.Random) -> bytes:
    parts = [odd(draw, b"3", SIZES) + odd(draw, b"\r\n", LINE_ENDS) + b"abc\r\n" for _ in range(draw.randrange(3))]
    return b"".join(parts) + odd(draw, b"0\r\n\r\n", [b"", b"0\r\nx: y\r\nTransfer-Encoding: x\r\n\r\n"])


def framed(draw: random.Random) -> tuple[list[bytes], bytes]:
    """Return headers that declare the body's length, and the body."""
    length = b"Content-Length: " + odd(draw, b"3", LENGTHS)
    encoding = b"Transfer-Encoding: " + odd(draw, b"chunked", ENCODINGS)
    both = draw.choice([[length, encoding], [encoding, length], [length, b"Content-Length: 4"], [encoding, encoding]])
    choices = [([], b""), ([length], b"abc"), ([encoding], chunks(draw)), (both, draw.choice([b"abc", chunks(draw)]))]
    return draw.choices(choices, weights=[3, 3, 3, 1])[0]


def request(draw: random.Random, paths: list[bytes]) -> bytes:
    """Return a valid request with some unusual parts."""
    end = odd(draw, b"\r\n", LINE_ENDS)
    line = odd(draw, draw.choice([b"GET", b"POST"]), METHODS) + odd(draw, b" ", [b"\t", b"  ", b""])
    line += draw.choice([b"/v1/echo", draw.choice(paths)]) + odd(draw, b" HTTP/1.1", VERSIONS)
    framing, body = framed(draw)
    fields = [*([b"Host: x"] if draw.random() < 0.95 else []), *framing]
    fields += draw.sample(HEADERS, 1) if draw.random() < 0.3 else []
    draw.shuffle(fields)
    return line + end + b"".join(field + end for field in fields) + end + body


def damaged(draw: random.Random, sent: bytes) -> bytes:
    """Change and drop some bytes."""
    changed = bytearray(sent)
    for _ in range(draw.choice([0] * 10 + [1, 3])):
        if changed:
            changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed[: draw.randrange(len(changed) + 1)]) if changed and draw.random() < 0.1 else bytes(changed)


def case(draw: random.Random, paths: list[bytes]) -> bytes:
    if draw.random() < 0.05:
        return draw.randbytes(draw.randrange(1, 3000))
    pipelined = draw.choice([1, 1, 1, 2, 5, 50])
    return b"".join(damaged(draw, request(draw, paths)) for _ in range(pipelined))


def statuses(port: int, sent: bytes) -> list[int]:
    """Return the status codes of the response until the proxy closes or waits for missing data."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        try:
            # leaves the client's side open, since the proxy treats a client that closes it as gone
            client.sendall(sent)
            while part := client.recv(65536):
                found += part
        except (ConnectionError, OSError) as error:
            assert not isinstance(error, TimeoutError), f"neither answered nor closed: {sent[:300]!r}"
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3}) ", found)]


@pytest.fixture
def front(tmp_path: Path) -> Iterator[tuple[psutil.Process, int, Path]]:
    """Run the proxy and its backend, each as a process, and check the log at the end."""
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.serve.echo_service"], cwd=ROOT, stdout=stream, stderr=stream
        )
    try:
        port = awaited(lambda: re.search(r"port (\d+)\n", log.read_text()), 60, log).group(1)
        yield psutil.Process(process.pid), int(port), log
    finally:
        process.terminate()
        process.wait(60)


def attack(front: tuple[psutil.Process, int, Path], count: int) -> None:
    process, port, log = front
    with other_host() as other, honest_client(f"http://127.0.0.1:{port}"):
        paths = targets(other.port)
        before = process.memory_info().rss

        def one(seed: int) -> Counter[int]:
            sent = case(random.Random(seed), paths)
            found = statuses(port, sent)
            assert not [code for code in found if code >= 500], f"seed {seed}: {found} for {sent[:300]!r}"
            return Counter(found)

        with ThreadPoolExecutor(CLIENTS) as clients:
            answers = sum(clients.map(one, range(count)), Counter())
        grew = (process.memory_info().rss - before) / 1e6
        time.sleep(0.2)
    print(f"{count} connections, answers by status {dict(answers)}, memory +{grew:.0f} MB")
    assert {200, 400} <= answers.keys()
    output = log.read_text()
    assert "Traceback" not in output and "rror" not in output, output[-3000:]
    assert other.reached == 0
    assert grew < GREW_MB


def test_hostile_http_is_refused(front: tuple[psutil.Process, int, Path]) -> None:
    attack(front, SHORT)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
def test_much_hostile_http_is_refused(front: tuple[psutil.Process, int, Path]) -> None:
    attack(front, LONG)
