"""Misbehaving clients on raw sockets, while a well-behaved client is served as usual."""

import asyncio
import gzip
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from baton.tasks.core.job import StageError
from baton.tasks.serve.limits import RequestLimits
from baton.tasks.serve.service import allow_files
from baton.tasks.serve.switch import Backend, Switch
from tests.serve.front import front_of
from tests.serve.test_proxy import running, until

LIMITS = RequestLimits(
    header_s=1.5,
    linger_s=0.5,
    body=100_000,
    bodies=300_000,
    body_s=1.0,
    whole_body_s=2.5,
    send_s=2.0,
    first_byte_s=1.0,
    between_bytes_s=1.0,
)
GONE = r"reset|Broken pipe"
HONEST_S = 6.0  # the maximum on a machine that is busy with other tests; the quadratic loop took 11 to 22 s
POST = b"POST /v1/echo HTTP/1.1\r\nHost: x\r\n"


def backend() -> Starlette:
    async def echo(request: Request) -> Response:
        return Response(await request.body(), headers={"saw": str(len(request.headers))})

    async def slow(request: Request) -> Response:
        await asyncio.sleep(3)
        return PlainTextResponse("late")

    async def stalls(request: Request) -> Response:
        return StreamingResponse(_parts(b"data: 1\n\n", 3))

    async def large(request: Request) -> Response:
        return StreamingResponse(_parts(b"x" * 65536, 0))

    paths = {"/v1/echo": echo, "/v1/slow": slow, "/v1/stalls": stalls, "/v1/large": large}
    return Starlette(routes=[Route(path, handler, methods=["GET", "POST"]) for path, handler in paths.items()])


async def _parts(part: bytes, pause_s: float) -> AsyncIterator[bytes]:
    for _ in range(500):
        yield part
        await asyncio.sleep(pause_s)


@pytest.fixture(scope="module")
def front() -> Iterator[tuple[Switch, str]]:
    switch = Switch()
    with running(backend()) as url, front_of(switch, LIMITS) as front:
        switch.turn(Backend(url, "aa" * 32))
        yield switch, front


@pytest.fixture
def url(front: tuple[Switch, str]) -> Iterator[str]:
    """The proxy's URL, while a well-behaved client is served."""
    switch, url = front
    with honest_client(url):
        yield url
    assert switch.current and until(lambda: not switch.current or switch.current.requests == 0)


@contextmanager
def honest_client(url: str) -> Iterator[None]:
    ended, slowest, wrong = threading.Event(), [0.0], []

    def ask() -> None:
        with httpx.Client(timeout=60, trust_env=False) as client:
            while not ended.wait(0.02):
                begun = time.monotonic()
                if (answer := client.post(f"{url}/v1/echo", content=b"hello")).text != "hello":
                    wrong.append(answer.text)
                slowest[0] = max(slowest[0], time.monotonic() - begun)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert wrong == []
    assert slowest[0] < HONEST_S


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=120)


def answered(client: socket.socket) -> bytes:
    """Return all data until the proxy closes the connection."""
    found = b""
    try:
        while part := client.recv(65536):
            found += part
    except ConnectionResetError:
        pass  # the proxy closed the connection during the request
    return found


def status(url: str, request: bytes) -> int:
    with connected(url) as client:
        client.sendall(request)
        return int(client.recv(65536).split()[1])


def test_ten_thousand_headers_are_refused(url: str) -> None:
    headers = b"".join(b"x-%d: v\r\n" % number for number in range(10_000))
    with connected(url) as client:
        client.sendall(POST + headers + b"\r\n")
        assert client.recv(100).split()[1] in (b"400", b"431")


def test_as_many_headers_as_clients_send_pass(url: str) -> None:
    answer = httpx.get(f"{url}/v1/echo", headers={f"x-{number}": "v" * 4000 for number in range(40)})
    assert int(answer.headers["saw"]) >= 40


def test_endless_headers_are_refused(url: str) -> None:
    with connected(url) as client:
        client.sendall(POST)
        with pytest.raises(OSError, match=GONE):
            for number in range(100_000):
                client.sendall(b"x-%d: v\r\n" % number)


@pytest.mark.parametrize("begun", [b"", b"GET /ec", POST + b"x-half: v"])
def test_a_request_whose_headers_do_not_arrive_is_closed(url: str, begun: bytes) -> None:
    with connected(url) as client:
        client.sendall(begun)
        assert answered(client) == b""


def test_headers_that_arrive_byte_by_byte_are_closed(url: str) -> None:
    with connected(url) as client, pytest.raises(OSError, match=GONE):
        for byte in POST * 10:
            client.sendall(bytes([byte]))
            time.sleep(0.1)


def test_a_connection_is_closed_when_it_has_been_idle(url: str) -> None:
    with connected(url) as client:
        client.sendall(POST + b"Content-Length: 2\r\n\r\nok")
        assert answered(client).endswith(b"\r\n\r\nok")


def test_the_body_of_a_request_is_waited_for_and_holds_no_backend(front: tuple[Switch, str], url: str) -> None:
    with connected(url) as client:
        client.sendall(POST + b"Content-Length: 1000\r\n\r\n" + b"x" * 100)
        answer = answered(client)
    assert b"408" in answer.splitlines()[0]
    assert b"did not arrive in time" in answer


def test_a_body_that_arrives_byte_by_byte_is_not_waited_for_without_end(url: str) -> None:
    begun = time.monotonic()
    with connected(url) as client:
        client.sendall(POST + b"Content-Length: 1000\r\n\r\n")
        client.settimeout(0.2)
        while time.monotonic() - begun < 20:
            client.sendall(b"x")
            try:
                found = client.recv(100)
                break
            except TimeoutError:
                pass
    assert found.split()[1] == b"408"


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: 100001\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n186a1\r\n" + b"x" * 100_001 + b"\r\n"],
)
def test_a_body_that_is_too_large_is_refused(url: str, body: bytes) -> None:
    assert status(url, POST + body) == 413


def test_all_bodies_together_have_a_limit(url: str) -> None:
    def refused() -> bool:
        answer = httpx.post(f"{url}/v1/echo", content=b"x" * 5000)
        return answer.status_code == 503 and "pending request bodies" in answer.text

    with ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(connected(url))
            client.sendall(POST + b"Content-Length: 99999\r\n\r\n" + b"x" * 99_998)
        assert until(refused)
    assert until(lambda: not refused())


def test_a_compressed_body_passes_as_it_is(url: str) -> None:
    bomb = gzip.compress(b"0" * 10_000_000)
    assert httpx.post(f"{url}/v1/echo", content=bomb, headers={"content-encoding": "gzip"}).content == bomb


def test_a_client_that_never_reads_is_dropped(front: tuple[Switch, str], url: str) -> None:
    backend = front[0].current
    assert backend is not None
    with ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", int(url.rpartition(":")[2])))
            client.sendall(b"GET /v1/large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert until(lambda: backend.requests >= 20)
        assert until(lambda: backend.requests <= 1, 20)  # the request of the honest client


def test_an_answer_that_does_not_begin_is_an_error_in_openai_s_form(url: str) -> None:
    answer = httpx.post(f"{url}/v1/slow", timeout=30)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, 504)
    assert "--first-byte" in answer.json()["error"]["message"]


def test_an_answer_that_stalls_is_cut_off_and_does_not_look_complete(url: str) -> None:
    with httpx.stream("GET", f"{url}/v1/stalls", timeout=30) as answer, pytest.raises(httpx.RemoteProtocolError):
        for part in answer.iter_raw():
            assert part == b"data: 1\n\n"


def test_a_thousand_idle_connections_cost_nothing_and_the_rest_get_503(front: tuple[Switch, str]) -> None:
    # high enough that no connection is idle for too long on a busy machine
    limits = RequestLimits(connections=1010, header_s=600)
    allow_files(2 * limits.connections)  # both ends belong to this process
    with front_of(front[0], limits) as url, ExitStack() as stack:
        with honest_client(url):
            for _ in range(1000):
                stack.enter_context(connected(url))
        more = [stack.enter_context(connected(url)) for _ in range(20)]
        assert more[-1].recv(1000).startswith(b"HTTP/1.1 503")


def test_more_connections_than_open_files_are_an_error_with_the_way_out() -> None:
    with pytest.raises(StageError, match=r"use --connections \d+ or less"):
        allow_files(10**9)


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    ],
    ids=["both", "two lengths", "unknown encoding", "two encodings"],
)
def test_a_body_whose_length_is_ambiguous_is_refused(url: str, head: bytes) -> None:
    assert status(url, POST + head) == 400
