"""Follow an alias of the model registry: the version that has it is the one that serves.

A new version's server is started beside the old one, must be healthy and pass the smoke test, and only then gets
the requests; the old one answers what it has begun, and is ended. A version that fails gets no request, and is not
tried again until the alias has moved. While the registry is away, the active version goes on serving.
"""

import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from typing import Any

from infra.progress import say
from tasks.job import StageError
from tasks.manifest import ArtifactError
from tasks.publish.aliases import Version, fetch, version_at
from tasks.serve.active import LOOK_S, Active
from tasks.serve.server import Served, Server, ServerFailed
from tasks.serve.switch import Backend, now


@dataclass
class Follower:
    """Makes the version of `name` that has `alias` the active model."""

    name: str
    alias: str
    every_s: float  # between two looks at the registry
    active: Active
    serving: Version | None = None
    refused: Version | None = None
    said: str = ""

    def keep(self, stopping: Event) -> None:
        """Until `stopping`; then every server is ended. The active server is watched in a thread of its own: neither
        a registry that does not answer nor a version that loads keeps it from being replaced."""
        self._tell(following={"name": self.name, "alias": self.alias}, coming=None, refused=None)
        try:
            with ThreadPoolExecutor() as pool:
                jobs = [pool.submit(self._follow, stopping), pool.submit(self.active.watch, stopping)]
                wait(jobs, return_when=FIRST_EXCEPTION)
                stopping.set()
            for job in jobs:
                job.result()
        finally:
            self.active.end()

    def _follow(self, stopping: Event) -> None:
        while not stopping.is_set():
            self._look(stopping)
            stopping.wait(self.every_s)

    def _look(self, stopping: Event) -> None:
        """Ask the registry once, and do what it takes."""
        wanted = self._wanted(stopping)
        if wanted is None or (self.serving and self.serving.version == wanted.version):
            return
        if self.serving and self.serving.digest == wanted.digest and self.active.backend:
            say(f"{_titled(wanted)} is the model that serves already")
            self.serving, self.active.backend.version = wanted, wanted.version
            return
        self._bring(wanted, stopping)

    def _wanted(self, stopping: Event) -> Version | None:
        """The version that is to serve: the alias', or the one that serves while that cannot be had."""
        try:
            found = self._asked(stopping)
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

    def _asked(self, stopping: Event) -> Version | None:
        """The version that has the alias. Raises StageError; at `stopping` at once, since a registry that hangs
        would hold up the end of the service."""
        asked: Future[Version | None] = Future()

        def ask() -> None:
            try:
                asked.set_result(version_at(self.name, self.alias, patience_s=0))
            except BaseException as error:
                asked.set_exception(error)

        Thread(target=ask, name="registry", daemon=True).start()
        while not stopping.is_set():
            if wait([asked], LOOK_S).done:
                return asked.result()
        raise StageError("the service ends")

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
            backend = Backend(server.url, version.digest, version.version)
            self.active.take_over(server, backend, partial(self._model, version))
            self.serving = version
            say(f"✓ {_titled(version)} serves, after {server.age_s():.0f} s")
        finally:
            self._tell(coming=None)

    def _sound(self, version: Version, stopping: Event) -> Server:
        """Raises ServerFailed, ArtifactError, StageError; then no process is left."""
        asked = time.monotonic()

        def given_up() -> bool:
            nonlocal asked
            if time.monotonic() - asked > self.every_s:
                moved, asked = self._moved_from(version, stopping), time.monotonic()
                return moved
            return stopping.is_set()

        server = self.active.sound(self._model(version), _titled(version), given_up)
        if stopping.is_set() or self._moved_from(version, stopping):
            server.stop()
            raise ServerFailed("the alias has moved on")
        return server

    def _model(self, version: Version) -> Served:
        return Served(fetch(version), version.digest, self.name)

    def _moved_from(self, version: Version, stopping: Event) -> bool:
        """Whether the alias is known to be elsewhere."""
        try:
            found = self._asked(stopping)
        except StageError:
            return False
        return found is None or found.version != version.version

    def _refuse(self, version: Version, error: Exception, stopping: Event) -> None:
        if stopping.is_set():
            return
        if self._moved_from(version, stopping):
            say(f"{_titled(version)} got no request: {self.alias} has moved on")
            return
        self.refused = version
        self._tell(refused=_said(version) | {"why": str(error).partition("\n")[0]})
        say(
            f"✗ {_titled(version)} gets no request, {_titled(self.serving)} goes on serving. It is tried again when "
            f"{self.alias} has moved away and back. {error}"
        )

    def _tell(self, **status: Any) -> None:
        self.active.switch.status |= status

    def _say_once(self, words: str) -> None:
        if words != self.said:
            self.said = words
            say(words)


def _titled(version: Version | None) -> str:
    return f"version {version.version} ({version.digest[:12]})" if version else "nobody"


def _said(version: Version) -> dict[str, Any]:
    return {"version": version.version, "model": version.digest, "since": now()}
