"""The proxy forwards only requests with the key for paths of OpenAI's API."""

import socket
from collections.abc import Iterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from baton.tasks.core.job import StageError
from baton.tasks.serve.door import api_key
from baton.tasks.serve.switch import Backend, Switch
from tests.serve.front import front_of
from tests.serve.test_proxy import running

KEY, BACKEND_KEY = "the key of the clients", "the key of the backend"
UPGRADE = (
    "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Version: 13\r\n"
)
WITH_KEY = {"authorization": f"Bearer {KEY}"}


def what_arrives() -> Starlette:
    """Return a server that answers every path with the request that it received."""

    async def echo(request: Request) -> Response:
        seen = {"path": request.url.path, "authorization": request.headers.getlist("authorization")}
        return JSONResponse(seen | {"body": (await request.body()).decode()})

    methods = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"]
    return Starlette(routes=[Route("/{path:path}", echo, methods=methods)])


@pytest.fixture(scope="module")
def door() -> Iterator[str]:
    """A proxy that requires the key, in front of an echo server."""
    switch = Switch()
    with pytest.MonkeyPatch.context() as patch, running(what_arrives()) as backend:
        patch.setenv("VLLM_API_KEY", KEY)
        switch.turn(Backend(backend, "aa" * 32, key=BACKEND_KEY))
        with front_of(switch) as url:
            yield url


def status(url: str, request: str) -> int:
    """Return the status of a request that is sent unchanged, since curl and httpx normalize paths."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(request.encode("latin-1"))
        return int(client.recv(65536).split()[1])


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/v1/responses/resp_1a-2.b/cancel", "/health"])
def test_a_path_of_the_api_needs_the_key(door: str, method: str, path: str) -> None:
    assert httpx.request(method, f"{door}{path}").status_code == 401
    assert httpx.request(method, f"{door}{path}?x=1", headers=WITH_KEY).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", KEY, f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Bearer {KEY.upper()}",
     f"Bearer {BACKEND_KEY}", "Bearer \xe4", f"Bearer {KEY}, Bearer {KEY}", "Bearer " + "x" * 7000],
)  # fmt: skip
def test_a_wrong_key_is_refused_in_openai_s_form(door: str, authorization: str) -> None:
    answer = httpx.get(f"{door}/v1/models", headers=[(b"authorization", authorization.encode("latin-1"))])
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert KEY not in answer.text


def test_the_scheme_may_be_written_in_any_case(door: str) -> None:
    assert httpx.get(f"{door}/v1/models", headers={"authorization": f"bearer {KEY}"}).status_code == 200


def test_the_backend_gets_its_own_key_once(door: str) -> None:
    twice = [("authorization", f"Bearer {KEY}"), ("Authorization", "Bearer another")]
    assert httpx.get(f"{door}/v1/models", headers=twice).json()["authorization"] == [f"Bearer {BACKEND_KEY}"]


def test_the_key_is_checked_before_the_body_is_read(door: str) -> None:
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n"
    assert status(door, f"{head}\r\n") == 401
    assert status(door, f"{head}Authorization: Bearer \r\n\r\n") == 401
    assert status(door, f"{head}Authorization: Bearer {KEY}\r\n\r\n") == 100


@pytest.mark.parametrize(
    "path",
    [
        "/", "/v1", "/v1/", "/v1//models", "//v1/models", "/v1/models/", "/V1/models", "/v1/../invocations",
        "/v1/./models", "/v1/..", "/v1/models/../../invocations", "/v1/%2e%2e/invocations", "/v1%2f..%2finvocations",
        "/v1/%2e%2e%2finvocations", "/v1/..%2finvocations", "/v1\\..\\invocations", "/v1/..\\invocations",
        "/v1/..;/invocations", "/v1/models;/../../invocations", "/v1/mod%65ls", "/%76%31/models", "/v1/models%00",
        "/v1/models#/invocations", "/v1/\xe4", "/invocations", "/invocations?/v1/models", "/invocations#/v1/models",
        "/ping", "/metrics", "/tokenize", "/detokenize", "/load", "/version", "/docs", "/openapi.json", "/v2/models",
        "/inference/v1/generate", "/health/", "/healthz/", "/Health", "/health/x", "/baton/", "/%62aton",
        "http://127.0.0.1/v1/models", "http://127.0.0.1/invocations", "127.0.0.1/v1/models", "*", "v1/models",
        "/.v1/models", "/xv1/models", "/v1x/models", "/v1/models\x0b", "/v1/.well-known/x",
    ],
)  # fmt: skip
def test_every_other_path_is_refused_even_with_the_key(door: str, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 0\r\n\r\n"
        assert status(door, head) in (400, 404)  # 400 is the parser's status


def test_another_path_is_refused_in_openai_s_form(door: str) -> None:
    answer = httpx.post(f"{door}/invocations", json={}, headers=WITH_KEY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, 404)
    assert "/v1/" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/realtime", "/invocations"])
def test_nothing_is_upgraded(door: str, path: str) -> None:
    assert status(door, f"GET {path} HTTP/1.1\r\nHost: x\r\n{UPGRADE}\r\n") in (401, 404)
    with_key = f"GET {path} HTTP/1.1\r\nHost: x\r\n{UPGRADE}Authorization: Bearer {KEY}\r\n\r\n"
    assert status(door, with_key) in (200, 404)  # 200 if it is served as a plain request


def test_status_needs_the_key_and_readiness_does_not(door: str) -> None:
    assert httpx.get(f"{door}/healthz").json() == {"serving": True}
    assert httpx.get(f"{door}/baton").status_code == 401
    answer = httpx.get(f"{door}/baton", headers=WITH_KEY)
    assert answer.json()["serving"]["model"] == "aa" * 32
    assert BACKEND_KEY not in answer.text


def test_without_a_key_in_the_environment_none_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    switch = Switch()
    with running(what_arrives()) as backend, front_of(switch) as url:
        switch.turn(Backend(backend, "aa" * 32, key=BACKEND_KEY))
        assert httpx.get(f"{url}/v1/models").json()["authorization"] == [f"Bearer {BACKEND_KEY}"]
        assert httpx.get(f"{url}/baton").status_code == 200
        assert httpx.post(f"{url}/invocations").status_code == 404


@pytest.mark.parametrize("key", ["key\n", " key", "ke\ty", "\x00"])
def test_a_key_that_no_client_can_send_is_an_error(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr("os.environ", {"VLLM_API_KEY": key})
    with pytest.raises(StageError, match="VLLM_API_KEY"):
        api_key()
