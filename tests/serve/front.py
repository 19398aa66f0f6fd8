"""A proxy with its limits on a free port, in a thread."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from baton.tasks.serve.limits import RequestLimits
from baton.tasks.serve.server import reserve
from baton.tasks.serve.service import answer
from baton.tasks.serve.switch import Switch


@contextmanager
def front_of(switch: Switch, limits: RequestLimits | None = None, beside: Switch | None = None) -> Iterator[str]:
    """Run a proxy, and yield its URL."""
    with reserve("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        loop, leave = asyncio.new_event_loop(), asyncio.Event()

        def run() -> None:
            loop.run_until_complete(answer(switch, bound, 5, limits or RequestLimits(), leave, beside))

        thread = threading.Thread(target=run)
        thread.start()
        try:
            _wait_for(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            loop.call_soon_threadsafe(leave.set)
            thread.join()
            loop.close()


def _wait_for(port: int, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
