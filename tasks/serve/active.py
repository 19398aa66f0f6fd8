"""The active model: its server is watched, replaced when it dies or hangs, and handed over to a new version.

None of this asks the registry: the model is known, and its files are on this disk.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any

import httpx

from infra.progress import say
from tasks.job import StageError
from tasks.manifest import ArtifactError
from tasks.serve.server import Served, Server, ServerFailed, waiting
from tasks.serve.smoke import smoke_test
from tasks.serve.switch import Backend, Switch, now

LOOK_S = 0.1  # between two looks at a server
PROBES = 3  # of /health in a health interval
AGAIN_S = 10.0  # from a replacement that failed to the next


@dataclass
class Active:
    """Keeps the switch at a server of the active model."""

    switch: Switch
    start: Callable[[Served], Server]
    health_s: float  # a server that has not been healthy for so long is replaced
    drain_s: float  # that an answer which was begun may still take when another version takes over
    again_s: float = AGAIN_S
    backend: Backend | None = None  # what is, or should be, at the switch
    server: Server | None = None
    _model: Callable[[], Served] | None = None
    _lock: Lock = field(default_factory=Lock)
    _leaving: list[Thread] = field(default_factory=list)

    def take_over(self, server: Server, backend: Backend, model: Callable[[], Served]) -> None:
        """Give all requests from now on to `server`. `model()` checks the model's files again, for a replacement."""
        with self._lock:
            before, leaving = self.switch.turn(backend), self.server
            self.server, self.backend, self._model = server, backend, model
        if leaving and before:  # a server that is being replaced is ended by who does that
            thread = Thread(target=_drain, args=(before, leaving, self.drain_s), name="drain")
            thread.start()
            self._leaving = [each for each in self._leaving if each.is_alive()] + [thread]

    def sound(self, model: Served, title: str, given_up: Callable[[], bool]) -> Server:
        """A server of the model that is healthy and has passed the smoke test. Raises ServerFailed; then no process is
        left."""
        server = self.start(model)
        try:
            server.wait_until_healthy(waiting(server, title), given_up)
            smoke_test(server.url, model)
        except BaseException:
            server.stop()
            raise
        return server

    def watch(self, stopping: Event) -> None:
        """Until `stopping`: replace the server whenever it dies or hangs."""
        self._tell(restarting=None)
        while not stopping.wait(LOOK_S):
            if (server := self.server) and (lost := self._lost(server, stopping)):
                self._replace(server, lost, stopping)

    def end(self) -> None:
        """End every server."""
        for thread in self._leaving:
            thread.join()
        if self.server:
            self.server.stop()

    def _lost(self, server: Server, stopping: Event) -> str | None:
        """What is wrong with the server, as soon as something is; None when it is not the active one any more."""
        healthy, probed = time.monotonic(), 0.0
        with httpx.Client(trust_env=False) as client:
            while server is self.server and not stopping.is_set():
                if not server.alive:
                    return "died"
                if time.monotonic() - probed >= self.health_s / PROBES:
                    probed = time.monotonic()
                    # asked before it is judged: this process may have been stopped for longer than health_s itself
                    left = self.health_s - (probed - healthy)
                    if _healthy(client, server, min(self.health_s / PROBES, left if left > 0 else self.health_s)):
                        healthy = time.monotonic()
                if (silent := time.monotonic() - healthy) >= self.health_s:
                    return f"has not been healthy for {silent:.1f} s (--health)"
                stopping.wait(LOOK_S)
        return None

    def _replace(self, lost: Server, how: str, stopping: Event) -> None:
        with self._lock:
            if self.server is not lost:
                return
            self.switch.turn(None)
        say(f"{lost.failed(how)}\nStarting it again.")
        lost.stop(grace_s=0)
        self._tell(restarting={"model": lost.model.digest, "why": how, "since": now()})
        while self.server is lost and not stopping.is_set():
            try:
                self._start_again(lost, stopping)
            except (
                StageError,
                ArtifactError,
                OSError,
            ) as error:  # OSError: no memory for a process, a disk that is away
                if self.server is lost and not stopping.is_set():
                    say(f"model {lost.model.digest[:12]} does not start; again in {self.again_s:g} s. {error}")
                    stopping.wait(self.again_s)
        self._tell(restarting=None)

    def _start_again(self, lost: Server, stopping: Event) -> None:
        """Raises ServerFailed, ArtifactError, StageError; then no process is left."""
        assert self._model is not None and self.backend is not None
        title = f"model {lost.model.digest[:12]}"
        server = self.sound(self._model(), title, lambda: self.server is not lost or stopping.is_set())
        with self._lock:
            if current := self.server is lost:
                self.backend = Backend(server.url, self.backend.digest, self.backend.version)
                self.server = server
                self.switch.turn(self.backend)
        if not current:
            server.stop()
            raise ServerFailed("another version has taken over")
        say(f"✓ {title} serves again, after {server.age_s():.0f} s")

    def _tell(self, **status: Any) -> None:
        self.switch.status |= status


def _healthy(client: httpx.Client, server: Server, deadline_s: float) -> bool:
    try:
        return client.get(f"{server.url}/health", timeout=deadline_s).is_success
    except httpx.TransportError:
        return False


def _drain(backend: Backend, server: Server, drain_s: float) -> None:
    deadline = time.monotonic() + drain_s
    while backend.requests and time.monotonic() < deadline and server.alive:
        time.sleep(LOOK_S)
    if backend.requests and server.alive:
        say(f"model {backend.digest[:12]} is ended with {backend.requests} answers unfinished, after {drain_s:g} s")
    server.stop()
