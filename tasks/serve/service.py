"""A service: the proxy on its port, and a keeper that keeps models behind it.

The port is open from the start; until a model is there, requests are told to come back. SIGTERM or Ctrl-C: nothing
new is taken, what was begun is answered, and every server is ended.
"""

import signal
import socket
from collections.abc import Callable
from threading import Event, Thread
from types import FrameType

import uvicorn

from tasks.serve.proxy import Switch, proxy

Keeper = Callable[[Event], None]


def run_service(switch: Switch, bound: socket.socket, drain_s: float, keep: Keeper) -> None:
    """Answer on the socket until a signal comes, or until `keep` ends, whose error is raised. `keep(stopping)`
    runs beside it, and has ended its servers when it returns; `stopping` is set when the last answer is given."""
    config = uvicorn.Config(
        proxy(switch),
        log_level="warning",
        ws="none",
        server_header=False,  # the backend's pass through
        date_header=False,
        timeout_graceful_shutdown=int(drain_s),
    )
    server, stopping = uvicorn.Server(config), Event()
    failures: list[BaseException] = []

    def beside() -> None:
        try:
            keep(stopping)
        except BaseException as error:
            failures.append(error)
        server.should_exit = True

    def leave(signum: int, frame: FrameType | None) -> None:
        server.should_exit = True

    for signum in (signal.SIGTERM, signal.SIGINT):  # uvicorn hands a signal on when it has ended
        signal.signal(signum, leave)
    keeper = Thread(target=beside, name="keeper")
    keeper.start()
    try:
        server.run(sockets=[bound])
    finally:
        stopping.set()
        keeper.join()
    if failures:
        raise failures[0]
