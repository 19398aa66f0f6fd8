"""Keep a server of the active model running: watch it, replace it when it dies or hangs, switch to a new version.

None of this needs the registry: the model's files are on this disk.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock, Thread

import httpx

from baton.infra.progress import say
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError
from baton.tasks.serve.server import Served, Server, ServerFailed, report_waiting
from baton.tasks.serve.smoke import smoke_test
from baton.tasks.serve.switch import Backend, Switch, now

POLL_S = 0.1  # time between two checks of a server
PROBES = 3  # probes of /health per health interval
RETRY_S = 10.0  # time before a retry of a failed replacement


@dataclass
class Active:
    """Keeps the switch at a healthy server of the active model."""

    switch: Switch
    start: Callable[[Served], Server]
    health_s: float  # a server that is unhealthy for this time is replaced
    drain_s: float  # time to finish responses when another version takes over
    retry_s: float = RETRY_S
    backend: Backend | None = None  # the one at the switch, or to be restored
    server: Server | None = None
    _model: Callable[[], Served] | None = None
    _lock: Lock = field(default_factory=Lock)
    _leaving: list[Thread] = field(default_factory=list)

    def activate(self, server: Server, backend: Backend, model: Callable[[], Served]) -> None:
        """Send all new requests to `server`. `model()` verifies the model's files again, for a replacement."""
        with self._lock:
            before, leaving = self.switch.turn(backend), self.server
            self.server, self.backend, self._model = server, backend, model
        if leaving and before:  # a server that is being replaced is stopped by _replace
            thread = Thread(target=_drain, args=(before, leaving, self.drain_s), name="drain")
            thread.start()
            self._leaving = [running for running in self._leaving if running.is_alive()] + [thread]

    def rename(self, version: int, model: Callable[[], Served]) -> None:
        """Make the active model another version, whose files a replacement then serves."""
        with self._lock:
            self._model = model
            if self.backend:
                self.backend.version = version

    def start_healthy(self, model: Served, title: str, cancelled: Callable[[], bool]) -> Server:
        """Start a server and wait until it is healthy and passes the smoke test. Raises ServerFailed, leaving no
        process."""
        server = self.start(model)
        try:
            server.wait_until_healthy(report_waiting(server, title), cancelled)
            smoke_test(server.url, model, server.key)
        except BaseException:
            server.stop()
            raise
        return server

    def watch(self, stopping: Event) -> None:
        """Replace the server whenever it dies or hangs, until `stopping`."""
        self.switch.status |= {"restarting": None}
        while not stopping.wait(POLL_S):
            if (server := self.server) and (reason := self._failure(server, stopping)):
                self._replace(server, reason, stopping)

    def stop(self) -> None:
        """Stop every server."""
        for thread in self._leaving:
            thread.join()
        if self.server:
            self.server.stop()

    def _failure(self, server: Server, stopping: Event) -> str | None:
        """Wait until the server fails, and return how; None once it is no longer the active one."""
        healthy, probed = time.monotonic(), 0.0
        with server.client() as client:
            while server is self.server and not stopping.is_set():
                if not server.alive:
                    return "died"
                if time.monotonic() - probed >= self.health_s / PROBES:
                    probed = time.monotonic()
                    # probe first, then judge: this process itself may have been stopped for longer than health_s
                    left = self.health_s - (probed - healthy)
                    if _healthy(client, server, min(self.health_s / PROBES, left if left > 0 else self.health_s)):
                        healthy = time.monotonic()
                if (silent := time.monotonic() - healthy) >= self.health_s:
                    return f"has not been healthy for {silent:.1f} s (--health)"
                stopping.wait(POLL_S)
        return None

    def _replace(self, failed: Server, reason: str, stopping: Event) -> None:
        with self._lock:
            if self.server is not failed:
                return
            self.switch.turn(None)
        say(f"{failed.failed(reason)}\nRestarting it.")
        failed.stop(grace_s=0)
        self.switch.status |= {"restarting": {"model": failed.model.digest, "why": reason, "since": now()}}
        while self.server is failed and not stopping.is_set():
            try:
                self._restart(failed, stopping)
            except (StageError, ArtifactError, OSError) as error:  # OSError: out of memory, an unavailable disk
                if self.server is failed and not stopping.is_set():
                    say(f"model {failed.model.digest[:12]} failed to start; retrying in {self.retry_s:g} s. {error}")
                    stopping.wait(self.retry_s)
        self.switch.status |= {"restarting": None}

    def _restart(self, failed: Server, stopping: Event) -> None:
        """Start a replacement of the failed server. Raises ServerFailed, ArtifactError, StageError, leaving no
        process."""
        assert self._model is not None and self.backend is not None
        title = f"model {failed.model.digest[:12]}"
        server = self.start_healthy(self._model(), title, lambda: self.server is not failed or stopping.is_set())
        with self._lock:
            if current := self.server is failed:
                self.backend = Backend(server.url, self.backend.digest, self.backend.version, key=server.key)
                self.server = server
                self.switch.turn(self.backend)
        if not current:
            server.stop()
            raise ServerFailed("another version has taken over")
        say(f"✓ {title} is serving again after {server.age_s():.0f} s")


def _healthy(client: httpx.Client, server: Server, deadline_s: float) -> bool:
    try:
        return client.get(f"{server.url}/health", timeout=deadline_s).is_success
    except httpx.TransportError:
        return False


def _drain(backend: Backend, server: Server, drain_s: float) -> None:
    deadline = time.monotonic() + drain_s
    while backend.requests and time.monotonic() < deadline and server.alive:
        time.sleep(POLL_S)
    if backend.requests and server.alive:
        say(f"model {backend.digest[:12]} is stopped with {backend.requests} unfinished responses after {drain_s:g} s")
    server.stop()
