"""A service: the proxy on its port, and a keeper that keeps models behind it.

The port is open from the start; until a model is there, requests are told to come back. SIGTERM or Ctrl-C: nothing
new is taken, what was begun is answered, and every server is ended. A second Ctrl-C does not wait for answers.
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

from tasks.job import StageError
from tasks.serve.limits import Limits
from tasks.serve.proxy import RETRY_S, Proxy
from tasks.serve.switch import Switch

Keeper = Callable[[Event], None]
OTHER_FILES = 256  # that the process has open beside its connections
BACKLOG = 1024
FULL = f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {RETRY_S}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def run_service(switch: Switch, bound: socket.socket, drain_s: float, keep: Keeper, limits: Limits) -> None:
    """Answer on the socket until a signal comes, or until `keep` ends, whose error is raised. `keep(stopping)`
    runs beside it, and has ended its servers when it returns; `stopping` is set when the last answer is given."""
    allow_files(limits.connections)
    stopping = Event()
    failures: list[BaseException] = []

    async def run() -> None:
        loop, leave = asyncio.get_running_loop(), asyncio.Event()

        def beside() -> None:
            try:
                keep(stopping)
            except BaseException as error:
                failures.append(error)
            if not stopping.is_set():
                loop.call_soon_threadsafe(leave.set)

        def interrupted() -> None:
            leave.set()
            loop.remove_signal_handler(signal.SIGINT)

        loop.add_signal_handler(signal.SIGTERM, leave.set)
        loop.add_signal_handler(signal.SIGINT, interrupted)
        keeper = Thread(target=beside, name="keeper")
        keeper.start()
        try:
            await answer(switch, bound, drain_s, limits, leave)
        finally:
            stopping.set()
            keeper.join()

    asyncio.run(run())
    if failures:
        raise failures[0]


async def answer(switch: Switch, bound: socket.socket, drain_s: float, limits: Limits, leave: asyncio.Event) -> None:
    """Answer on the socket until `leave`; then no longer than `drain_s` for what was begun."""
    runner = web.AppRunner(
        Proxy(switch, limits).application(),
        access_log=None,
        auto_decompress=False,
        handler_cancellation=True,  # a client that goes away ends its request at the backend
        keepalive_timeout=limits.header_s,  # from when a connection is open or idle to when a request's headers are in
        lingering_time=limits.linger_s,
        logger=_logger(),
        max_field_size=limits.header_line,
        max_headers=limits.headers,
        max_line_size=limits.header_line,
        shutdown_timeout=drain_s,
    )
    await runner.setup()
    server = runner.server
    assert server is not None
    # Clients that do not read. In the kernel, since a connection that is being closed has no handler any more.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.send_s * 1000))

    def protocol() -> asyncio.Protocol:
        return server() if len(server.connections) < limits.connections else Full()

    listener = await asyncio.get_running_loop().create_server(protocol, sock=bound, backlog=BACKLOG)
    try:
        await leave.wait()
    finally:
        listener.close()
        await runner.cleanup()


class Full(asyncio.Protocol):
    """A connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.write(FULL.encode())
        stream.close()


def allow_files(connections: int) -> None:
    """Let this process have a file for each connection and one for its backend's. Raises StageError."""
    needed = 2 * connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise StageError(
            f"{connections} connections need {needed} open files, and this process may have {hard} (ulimit -Hn); "
            f"give --connections {max(1, (hard - OTHER_FILES) // 2)} or less, or raise the limit"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _logger() -> logging.Logger:
    """aiohttp's, without what clients do wrong: malformed requests are answered, not logged with a traceback."""
    logger = logging.getLogger("aiohttp.server")
    if _not_of_a_client not in logger.filters:
        logger.addFilter(_not_of_a_client)
    return logger


def _not_of_a_client(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
