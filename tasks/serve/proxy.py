"""The small proxy in front of the servers: each request goes to the model of now, and is answered to its end by it.

A request takes its backend and is counted there in one step: a backend that is no longer current and has no
requests has had its last one. Answers are passed on as they come, with `x-baton-model`: the digest of the model
that answered.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

MODEL_HEADER = "x-baton-model"
RETRY_S = 5  # what a client is told while no model is there
IDLE_S = 2.0  # a connection that is kept for the next request; vLLM closes its end after 5 s
# between two neighbours, not end to end (RFC 9110, 7.6.1); httpx writes the host anew
_HOP = {
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host",
}  # fmt: skip


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Backend:
    """A server that may get requests."""

    url: str
    digest: str  # of its model
    version: int | None = None  # in the registry
    requests: int = 0  # that it is answering
    since: str = field(default_factory=now)


class Switch:
    """Which backend gets the next request."""

    def __init__(self) -> None:
        self.current: Backend | None = None
        self.status: dict[str, Any] = {}  # what /baton says beside who serves
        self._lock = Lock()

    def take(self) -> Backend | None:
        """The backend of a request that begins now; the request is to be given back when it is answered."""
        with self._lock:
            if self.current:
                self.current.requests += 1
            return self.current

    def give_back(self, backend: Backend) -> None:
        with self._lock:
            backend.requests -= 1

    def turn(self, backend: Backend | None) -> Backend | None:
        """Send all requests from now on to `backend`; returns the one that had them."""
        with self._lock:
            before, self.current = self.current, backend
            return before


def proxy(switch: Switch) -> Starlette:
    """The application: /healthz and /baton are its own, everything else is the backend's."""
    client = httpx.AsyncClient(
        timeout=httpx.Timeout(None, connect=10),  # an answer takes as long as it takes
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=IDLE_S),
        trust_env=False,
    )

    async def forward(scope: Scope, receive: Receive, send: Send) -> None:
        backend = switch.take()
        if backend is None:
            await _error("no model is served yet", 503)(scope, receive, send)
            return
        try:
            await _forward(client, backend, scope, receive, send)
        finally:
            switch.give_back(backend)

    async def healthz(request: Request) -> Response:
        return JSONResponse({"serving": switch.current is not None}, 200 if switch.current else 503)

    async def baton(request: Request) -> Response:
        one = switch.current
        serving = one and {"model": one.digest, "version": one.version, "since": one.since, "requests": one.requests}
        return JSONResponse({"serving": serving, **switch.status})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    return Starlette(
        routes=[Route("/healthz", healthz), Route("/baton", baton), Mount("/", forward)], lifespan=lifespan
    )


async def _forward(client: httpx.AsyncClient, backend: Backend, scope: Scope, receive: Receive, send: Send) -> None:
    body = await Request(scope, receive).body()
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    try:  # a text put together could name another host: "@host" is a path that a client may send
        url = httpx.URL(backend.url).copy_with(raw_path=scope["raw_path"] + query)
    except httpx.InvalidURL:
        await _error("the path must begin with /", 400)(scope, receive, send)
        return
    headers = [(name, value) for name, value in scope["headers"] if name not in _HOP]
    request = client.build_request(scope["method"], url, headers=headers, content=body)
    try:
        answer = await _unless_gone(_ask(client, request), receive)
    except httpx.TransportError as error:
        await _error(f"the model's server does not answer ({type(error).__name__})", 502)(scope, receive, send)
        return
    if answer is None:
        return
    try:
        response = StreamingResponse(answer.aiter_raw(), answer.status_code)
        passed = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _HOP]
        response.raw_headers = [*passed, (MODEL_HEADER.encode(), backend.digest.encode())]
        await response(scope, receive, send)
    finally:
        await answer.aclose()


async def _ask(client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    """The beginning of the answer. A kept connection may have been closed just as it was used again: once more."""
    try:
        return await client.send(request, stream=True)
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
        return await client.send(request, stream=True)


async def _unless_gone(asking: Any, receive: Receive) -> httpx.Response | None:
    """The answer; None when the client goes away first, and then the server is told so by a closed connection."""
    answer, gone = asyncio.ensure_future(asking), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await answer if answer.done() else None
    finally:
        answer.cancel()
        gone.cancel()


def _error(message: str, status: int) -> Response:
    """In OpenAI's form."""
    kind = "invalid_request_error" if status < httpx.codes.INTERNAL_SERVER_ERROR else "service_unavailable"
    error = {"message": message, "type": kind, "code": status}
    return JSONResponse({"error": error}, status, {"retry-after": str(RETRY_S)} if status >= 500 else None)
