"""Run the proxy on its port, and a thread that runs the servers behind it.

The port is open from the start; requests get 503 until a model is active. On SIGTERM or Ctrl-C no new requests are
accepted, responses are finished, and every server is stopped. A second Ctrl-C doesn't wait for responses.
"""

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable
from threading import Event, Thread
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from baton.tasks.core.job import StageError
from baton.tasks.serve.limits import RequestLimits
from baton.tasks.serve.proxy import RETRY_S, Proxy
from baton.tasks.serve.switch import Switch

ServerRunner = Callable[[Event], None]
OTHER_FILES = 256  # open files of the process beside its connections
BACKLOG = 1024
FULL = f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {RETRY_S}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def run_service(
    switch: Switch,
    bound: socket.socket,
    drain_s: float,
    run_servers: ServerRunner,
    limits: RequestLimits,
    beside: Switch | None = None,
) -> None:
    """Serve on the socket until a signal, or until `run_servers` returns or raises; its error is re-raised.
    `run_servers(stopping)` runs in a thread and stops its servers before it returns; `stopping` is set after the last
    response."""
    allow_files(limits.connections)
    stopping = Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        loop, leave = asyncio.get_running_loop(), asyncio.Event()

        def run() -> None:
            try:
                run_servers(stopping)
            except BaseException as error:
                failures.append(error)
            loop.call_soon_threadsafe(leave.set)

        def interrupted() -> None:
            leave.set()
            loop.remove_signal_handler(signal.SIGINT)

        loop.add_signal_handler(signal.SIGTERM, leave.set)
        loop.add_signal_handler(signal.SIGINT, interrupted)
        thread = Thread(target=run, name="servers")
        thread.start()
        try:
            await answer(switch, bound, drain_s, limits, leave, beside)
        finally:
            stopping.set()
            thread.join()

    asyncio.run(serve())
    if failures:
        raise failures[0]


async def answer(
    switch: Switch,
    bound: socket.socket,
    drain_s: float,
    limits: RequestLimits,
    leave: asyncio.Event,
    beside: Switch | None = None,
) -> None:
    """Serve on the socket until `leave`, then finish responses for at most `drain_s`."""
    # For clients that don't read. Set in the kernel, since a connection that is being closed has no handler.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.send_s * 1000))
    async with Proxy(switch, limits, beside) as proxy:
        server = web.Server(
            proxy.answer,
            access_log=None,
            auto_decompress=False,
            handler_cancellation=True,  # a client that disconnects cancels its request at the backend
            keepalive_timeout=limits.header_s,  # also limits the time to receive a request's headers
            lingering_time=limits.linger_s,
            logger=_logger(),
            max_field_size=limits.header_line,
            max_headers=limits.headers,
            max_line_size=limits.header_line,
        )
        runner = web.ServerRunner(server, shutdown_timeout=drain_s)
        await runner.setup()

        def protocol() -> asyncio.Protocol:
            return server() if len(server.connections) < limits.connections else Full()

        listener = await asyncio.get_running_loop().create_server(protocol, sock=bound, backlog=BACKLOG)
        try:
            await leave.wait()
        finally:
            listener.close()
            await runner.cleanup()


class Full(asyncio.Protocol):
    """Answers a connection beyond the limit with 503."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.write(FULL.encode())
        stream.close()


def allow_files(connections: int) -> None:
    """Raise the limit of open files to two per connection: the client's and the backend's. Raises StageError."""
    needed = 2 * connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise StageError(
            f"{connections} connections need {needed} open files, but the hard limit is {hard} (ulimit -Hn); "
            f"use --connections {max(1, (hard - OTHER_FILES) // 2)} or less, or raise the limit"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _logger() -> logging.Logger:
    """aiohttp's logger without clients' errors: malformed requests are answered, not logged with a traceback."""
    logger = logging.getLogger("aiohttp.server")
    if _not_client_error not in logger.filters:
        logger.addFilter(_not_client_error)
    return logger


def _not_client_error(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
