"""The proxy in front of real servers: uvicorn, and a bare socket as a misbehaving server."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp

from baton.tasks.serve.proxy import MODEL_HEADER
from baton.tasks.serve.switch import Backend, Switch
from tests.serve.front import front_of
from tests.serve.small_server import app

OLD, NEW = "aa" * 32, "bb" * 32


@contextmanager
def running(application: ASGIApp) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def backends() -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running(app(digest, "coder"))) for digest in (OLD, NEW)]


@pytest.fixture(scope="module")
def front() -> Iterator[tuple[Switch, str]]:
    switch = Switch()
    with front_of(switch) as url:
        yield switch, url


@pytest.fixture
def url(front: tuple[Switch, str], backends: list[str]) -> str:
    front[0].turn(Backend(backends[0], OLD))
    return front[1]


def ask(url: str, tokens: int = 2, **words: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json={"model": "coder", "max_tokens": tokens, **words})


def test_an_answer_passes_as_it_is_with_the_digest_of_who_gave_it(url: str, backends: list[str]) -> None:
    direct, answer = ask(backends[0]), ask(url)
    assert answer.content == direct.content
    assert answer.headers[MODEL_HEADER] == OLD
    for name in ("content-type", "content-length", "server"):
        assert answer.headers[name] == direct.headers[name]


def test_an_error_of_the_server_is_the_client_s(url: str) -> None:
    answer = ask(url, model="another")
    assert (answer.status_code, answer.headers[MODEL_HEADER]) == (404, OLD)
    assert "`another` does not exist" in answer.text


def test_the_query_and_the_method_arrive(url: str) -> None:
    assert httpx.get(f"{url}/v1/models?limit=1").json()["data"][0]["id"] == OLD
    assert httpx.get(f"{url}/v1/completions").status_code == 405


def test_a_stream_arrives_part_by_part(url: str) -> None:
    with httpx.stream(
        "POST", f"{url}/v1/completions", json={"model": "coder", "max_tokens": 30, "stream": True}
    ) as answer:
        arrived = [time.monotonic() for _ in answer.iter_raw()]
    assert len(arrived) > 10
    assert arrived[-1] - arrived[0] > 0.3


def test_who_was_begun_with_finishes_and_who_comes_after_the_switch_meets_the_new_one(
    front: tuple[Switch, str], url: str, backends: list[str]
) -> None:
    asked = {"model": "coder", "max_tokens": 30, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=asked) as answer:
        old = front[0].turn(Backend(backends[1], NEW))
        assert old is not None and old.requests == 1
        assert ask(url).headers[MODEL_HEADER] == NEW
        assert answer.headers[MODEL_HEADER] == OLD
        assert answer.read().endswith(b"data: [DONE]\n\n")
    assert until(lambda: old.requests == 0)


def test_a_client_that_goes_away_is_not_waited_for(front: tuple[Switch, str], url: str) -> None:
    backend = front[0].current
    assert backend is not None
    asked = {"model": "coder", "max_tokens": 10_000}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json=asked, timeout=0.2)
    assert until(lambda: backend.requests == 0)
    with httpx.stream("POST", f"{url}/v1/completions", json=asked | {"stream": True}) as answer:
        next(answer.iter_raw())
    assert until(lambda: backend.requests == 0)


def test_without_a_model_clients_get_retry_after(front: tuple[Switch, str]) -> None:
    front[0].turn(None)
    answer = ask(front[1])
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["type"] == "service_unavailable"
    assert httpx.get(f"{front[1]}/healthz").status_code == 503


def test_a_server_that_is_gone_is_an_error_in_openai_s_form(front: tuple[Switch, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    front[0].turn(Backend(f"http://127.0.0.1:{port}", OLD))
    answer = ask(front[1])
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, 502)


def test_a_connection_that_closes_just_as_it_is_used_again_costs_no_request(front: tuple[Switch, str]) -> None:
    """Servers close idle connections after some seconds. This one answers once per connection, and closes it on the
    next request."""
    with rude_server() as (backend, arrived):
        front[0].turn(Backend(backend, OLD))
        with httpx.Client() as client:
            assert [client.post(f"{front[1]}/v1/completions", content=b"x").text for _ in range(3)] == ["ok"] * 3
    assert len(arrived) == 3


def test_a_request_that_a_server_may_have_begun_is_not_sent_again(front: tuple[Switch, str]) -> None:
    with rude_server(answers=0) as (backend, arrived):
        front[0].turn(Backend(backend, OLD))
        answer = httpx.post(f"{front[1]}/v1/completions", content=b"x")
    assert (answer.status_code, len(arrived)) == (502, 1)


@pytest.mark.parametrize("path", ["@127.0.0.1:9/", "http://127.0.0.1:9/"])
def test_no_path_leads_to_another_host(url: str, path: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        status = int(client.recv(100).split()[1])
    assert status in (400, 404)  # refused because of its path, or passed to the backend


@contextmanager
def rude_server(answers: int = 1) -> Iterator[tuple[str, list[bytes]]]:
    """Run a server that closes each connection on the request after a number of answers. Yields its URL and all
    requests."""
    arrived: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,)).start()

    def answer(connection: socket.socket) -> None:
        with connection:
            for number in range(answers + 1):
                if request := connection.recv(65536):
                    arrived.append(request)
                if request and number < answers:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", arrived
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def until(met: Callable[[], bool], timeout_s: float = 5) -> bool:
    deadline = time.monotonic() + timeout_s
    while not met() and time.monotonic() < deadline:
        time.sleep(0.02)
    return met()
