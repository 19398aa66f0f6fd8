"""Follow an alias of the model registry: the version that has it is the one that serves.

A new version's server is started beside the old one, must be healthy and pass the smoke test, and only then gets
the requests; the old one answers what it has begun, and is ended. A version that fails gets no request, and is not
tried again until the alias has moved. While the registry is away, what serves goes on serving.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

from infra.progress import say
from tasks.job import StageError
from tasks.manifest import ArtifactError
from tasks.publish.aliases import Version, fetch, version_at
from tasks.serve.proxy import Backend, Switch, now
from tasks.serve.server import Served, Server, ServerFailed, waiting
from tasks.serve.smoke import smoke_test

LOOK_S = 0.1  # between two looks at a server that answers its last requests


@dataclass
class Follower:
    """Keeps the switch at the version of `name` that has `alias`."""

    name: str
    alias: str
    every_s: float  # between two looks at the registry
    drain_s: float  # that an answer which was begun may still take
    switch: Switch
    start: Callable[[Served], Server]
    serving: Version | None = None  # or was, until its server died
    server: Server | None = None
    refused: Version | None = None
    leaving: list[Thread] = field(default_factory=list)
    said: str = ""

    def keep(self, stopping: Event) -> None:
        """Until `stopping`; then every server is ended."""
        self._tell(following={"name": self.name, "alias": self.alias}, coming=None, refused=None)
        try:
            while not stopping.is_set():
                self._look(stopping)
                stopping.wait(self.every_s)
        finally:
            for thread in self.leaving:
                thread.join()
            if self.server:
                self.server.stop()

    def _look(self, stopping: Event) -> None:
        """Ask the registry once, and do what it takes."""
        if self.server and not self.server.alive:
            self.switch.turn(None)
            say(f"{self.server.failed('died')}\nStarting it again.")
            self.server.stop()
            self.server = None
        wanted = self._wanted()
        if wanted is None or (self.server and self.serving and self.serving.version == wanted.version):
            return
        if self.server and self.serving and self.serving.digest == wanted.digest and self.switch.current:
            say(f"{_titled(wanted)} is the model that serves already")
            self.serving, self.switch.current.version = wanted, wanted.version
            return
        self._bring(wanted, stopping)

    def _wanted(self) -> Version | None:
        """The version that is to serve: the alias', or the one that serves while that cannot be had."""
        try:
            found = version_at(self.name, self.alias, patience_s=0)
        except StageError as error:
            self._say_once(f"the registry is away, so {_titled(self.serving)} goes on serving. {error}")
            return self.serving
        if found is None:
            self._say_once(f"{self.name} has no {self.alias}, so {_titled(self.serving)} goes on serving")
            return self.serving
        if self.refused and found.version == self.refused.version:
            return self.serving
        if self.refused:
            self.refused = None
            self._tell(refused=None)
        self._say_once(f"{self.alias} is {_titled(found)}")
        return found

    def _bring(self, version: Version, stopping: Event) -> None:
        """Start the version's server and, if it is sound and still wanted, give it the requests."""
        self._tell(coming=_said(version))
        try:
            server = self._sound(version, stopping)
        except (ServerFailed, ArtifactError) as error:
            self._refuse(version, error, stopping)
        except (StageError, OSError) as error:  # its files are to come from a registry that is away, or to a full disk
            self._say_once(f"{_titled(version)} cannot be fetched now; trying again. {error}")
        else:
            self._switch_to(version, server)
        finally:
            self._tell(coming=None)

    def _sound(self, version: Version, stopping: Event) -> Server:
        """Raises ServerFailed, ArtifactError, StageError; then no process is left."""
        model = Served(fetch(version), version.digest, self.name)
        server = self.start(model)
        asked = time.monotonic()

        def given_up() -> bool:
            nonlocal asked
            if time.monotonic() - asked > self.every_s:
                moved, asked = self._moved_from(version), time.monotonic()
                return moved
            return stopping.is_set()

        try:
            server.wait_until_healthy(waiting(server, _titled(version)), given_up)
            smoke_test(server.url, model)
            if stopping.is_set() or self._moved_from(version):
                raise ServerFailed("the alias has moved on")
        except BaseException:
            server.stop()
            raise
        return server

    def _moved_from(self, version: Version) -> bool:
        """Whether the alias is known to be elsewhere. What is brought back after its server died is wanted anyway."""
        if self.serving and version.version == self.serving.version:
            return False
        try:
            found = version_at(self.name, self.alias, patience_s=0)
        except StageError:
            return False
        return found is None or found.version != version.version

    def _refuse(self, version: Version, error: Exception, stopping: Event) -> None:
        if stopping.is_set():
            return
        if self._moved_from(version):
            say(f"{_titled(version)} got no request: {self.alias} has moved on")
            return
        if self.serving and self.serving.version == version.version:  # it was sound once
            say(f"{_titled(version)} does not start again; trying once more in {self.every_s:g} s. {error}")
            return
        self.refused = version
        self._tell(refused=_said(version) | {"why": str(error).partition("\n")[0]})
        say(
            f"✗ {_titled(version)} gets no request, {_titled(self.serving)} goes on serving. It is tried again when "
            f"{self.alias} has moved away and back. {error}"
        )

    def _switch_to(self, version: Version, server: Server) -> None:
        before, leaving = self.switch.turn(Backend(server.url, version.digest, version.version)), self.server
        self.serving, self.server = version, server
        say(f"✓ {_titled(version)} serves, after {server.age_s():.0f} s")
        if before and leaving:
            thread = Thread(target=_drain, args=(before, leaving, self.drain_s), name="drain")
            thread.start()
            self.leaving = [each for each in self.leaving if each.is_alive()] + [thread]

    def _tell(self, **status: Any) -> None:
        self.switch.status |= status

    def _say_once(self, words: str) -> None:
        if words != self.said:
            self.said = words
            say(words)


def _drain(backend: Backend, server: Server, drain_s: float) -> None:
    deadline = time.monotonic() + drain_s
    while backend.requests and time.monotonic() < deadline and server.alive:
        time.sleep(LOOK_S)
    if backend.requests and server.alive:
        say(f"model {backend.digest[:12]} is ended with {backend.requests} answers unfinished, after {drain_s:g} s")
    server.stop()


def _titled(version: Version | None) -> str:
    return f"version {version.version} ({version.digest[:12]})" if version else "nobody"


def _said(version: Version) -> dict[str, Any]:
    return {"version": version.version, "model": version.digest, "since": now()}
