"""Reverse proxy in front of the servers: forwards each request to the active model, which finishes it.

Both sides use aiohttp (3.14). Under raw-socket attacks, uvicorn waits forever for half-sent headers (and accepted 60 MB
of them with httptools), granian and hypercorn accept Content-Length together with Transfer-Encoding, and HAProxy, which
withstands them, cannot be installed by pip. httpx compares headers pairwise: 10,000 of them took 11 s.

A request is forwarded once it has arrived completely, so a slow client occupies no backend. It is sent once, on a new
connection: if a kept-alive connection broke, it would not be known whether the backend had begun the request. Responses
are streamed, with the model's digest in `x-baton-model`. The proxy itself answers /healthz and /baton, and has the page
/chat. Of two models, the second one's paths are those of the first below /beside.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Self

import aiohttp
from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from baton.infra.progress import say
from baton.tasks.serve import chat_page
from baton.tasks.serve.door import api_key, authorization, is_api, may_pass
from baton.tasks.serve.limits import MIB, RequestLimits
from baton.tasks.serve.switch import Backend, Switch

MODEL_HEADER = "x-baton-model"
BESIDE = "/beside"  # before the paths of the second model
RETRY_S = 5  # Retry-After while no model is active
# hop-by-hop headers (RFC 9110, 7.6.1)
HOP = frozenset({
    "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
OURS = frozenset({"host", "content-length", "expect"})  # request headers set or handled by the proxy
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_MODEL = "no model is served yet"
ADDED_BY_AIOHTTP = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT)


class Refused(Exception):
    """A request that the proxy itself answers with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def response(self) -> web.Response:
        """An error response in OpenAI's format."""
        ours = self.status >= 500
        error = {
            "message": str(self),
            "type": "service_unavailable" if ours else "invalid_request_error",
            "code": self.status,
        }
        headers = {hdrs.RETRY_AFTER: str(RETRY_S)} if ours else {}
        headers |= {hdrs.WWW_AUTHENTICATE: "Bearer"} if self.status == 401 else {}
        return web.json_response({"error": error}, status=self.status, headers=headers)


class CutOff(Exception):
    """A response that began but cannot be completed."""


class Proxy:
    """The request handler and its state. A context manager, since it owns the client of the backends."""

    def __init__(self, switch: Switch, limits: RequestLimits, beside: Switch | None = None) -> None:
        self.switches = {"": switch} | ({BESIDE: beside} if beside else {})  # by the beginning of their paths
        self.limits, self.key = limits, api_key()
        self._held = 0  # bytes of request bodies in memory

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.limits.connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),  # cookies belong to the clients
            skip_auto_headers=ADDED_BY_AIOHTTP,
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer any request. Its body is read only after access is granted."""
        path = request.raw_path.partition("?")[0]
        prefix = BESIDE if BESIDE in self.switches and path.startswith(f"{BESIDE}/") else ""
        switch, target = self.switches[prefix], request.raw_path.removeprefix(prefix)
        try:
            if path == "/healthz":
                return self._healthz()
            if path in chat_page.FILES and request.method in chat_page.METHODS:
                return chat_page.response(path)
            is_status = path.removeprefix(prefix) == "/baton"
            if not is_status and not is_api(target):
                raise Refused(404, "there is no such path; the API is below /v1/")
            if self.key and not may_pass(request.headers.get(hdrs.AUTHORIZATION, ""), self.key):
                raise Refused(401, "the API key is missing or wrong; send it in the header Authorization: Bearer KEY")
            return _status(switch) if is_status else await self._forward(request, switch, target)
        except Refused as refused:
            return refused.response()

    def _healthz(self) -> web.Response:
        serving = all(switch.current for switch in self.switches.values())
        return web.json_response({"serving": serving}, status=200 if serving else 503)

    async def _forward(self, request: web.BaseRequest, switch: Switch, target: str) -> web.StreamResponse:
        if switch.current is None:
            raise Refused(503, NO_MODEL)  # without waiting for the body
        async with self._body(request) as body:
            if (backend := switch.acquire()) is None:
                raise Refused(503, NO_MODEL)
            try:
                return await self._answer(request, backend, target, body)
            finally:
                switch.release(backend)

    @asynccontextmanager
    async def _body(self, request: web.BaseRequest) -> AsyncIterator[bytes]:
        """Receive the whole body, and count it as held in memory until the response begins."""
        most, size = self.limits.body, 0
        too_large = Refused(413, f"the body is larger than {most / MIB:g} MiB (--body-mib)")
        if (request.content_length or 0) > most:
            raise too_large
        if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
            await request.writer.write(CONTINUE)
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self.limits.whole_body_s):
                while part := await self._part_of_body(request):
                    size, self._held = size + len(part), self._held + len(part)
                    if size > most:
                        raise too_large
                    if self._held > self.limits.bodies:
                        raise Refused(503, f"pending request bodies exceed {self.limits.bodies / MIB:g} MiB")
                    parts.append(part)
            yield b"".join(parts)
        except TimeoutError as error:
            raise Refused(408, "the body did not arrive in time") from error
        finally:
            self._held -= size

    async def _part_of_body(self, request: web.BaseRequest) -> bytes:
        try:
            async with asyncio.timeout(self.limits.body_s):
                return await request.content.readany()
        except (web.RequestPayloadError, HttpProcessingError) as error:
            raise Refused(400, "the body is malformed") from error

    async def _answer(self, request: web.BaseRequest, backend: Backend, target: str, body: bytes) -> web.StreamResponse:
        limit = self.limits.first_byte_s
        try:
            async with asyncio.timeout(limit):
                answer = await self._ask(request, backend, target, body)
        except aiohttp.ClientError as error:
            raise Refused(502, f"the model's server does not respond ({type(error).__name__})") from error
        except TimeoutError as error:
            raise Refused(504, f"the model's server did not respond within {limit:g} s (--first-byte)") from error
        try:
            return await self._pass_on(request, backend, answer)
        finally:
            answer.close()

    async def _ask(
        self, request: web.BaseRequest, backend: Backend, target: str, body: bytes
    ) -> aiohttp.ClientResponse:
        """Send the request and receive the response's headers."""
        url = URL(f"{backend.url}{target}", encoded=True)
        headers = _end_to_end(request.headers, HOP | OURS)
        if backend.key:
            headers = [(name, value) for name, value in headers if name.lower() != "authorization"]
            headers += authorization(backend.key).items()
        data = io.BytesIO(body) if body else None
        return await self._client.request(request.method, url, headers=headers, data=data, allow_redirects=False)

    async def _pass_on(
        self, request: web.BaseRequest, backend: Backend, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        response.headers.extend(_end_to_end(answer.headers, HOP))
        response.headers[MODEL_HEADER] = backend.digest
        try:
            await response.prepare(request)
            while part := await self._part_of_answer(answer):
                await response.write(part)
            await response.write_eof()
        except CutOff as cut:
            say(f"a response of model {backend.digest[:12]} is cut off: {cut}")
            if request.transport:
                request.transport.close()  # without the final chunk, which would make it look complete
        except ConnectionResetError:
            pass  # the client disconnected
        return response

    async def _part_of_answer(self, answer: aiohttp.ClientResponse) -> bytes:
        limit = self.limits.between_bytes_s
        try:
            async with asyncio.timeout(limit):
                return await answer.content.readany()
        except aiohttp.ClientError as error:
            raise CutOff(f"the server closed the connection ({type(error).__name__})") from error
        except TimeoutError as error:
            raise CutOff(f"the server sent nothing for {limit:g} s (--between-bytes)") from error


def _status(switch: Switch) -> web.Response:
    one = switch.current
    serving = one and {"model": one.digest, "version": one.version, "since": one.since, "requests": one.requests}
    return web.json_response({"serving": serving, **switch.status})


def _end_to_end(headers: Mapping[str, str], without: frozenset[str]) -> list[tuple[str, str]]:
    """Return the headers except those in `without` and those named by Connection (RFC 9110, 7.6.1)."""
    named = {name.strip().lower() for name in headers.get(hdrs.CONNECTION, "").split(",")}
    return [(name, value) for name, value in headers.items() if name.lower() not in without | named]
