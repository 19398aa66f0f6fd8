"""Follow an alias of the model registry: serve the version that has it.

A new version's server is started beside the old one and gets requests once it is healthy and passes the smoke test; the
old one finishes its responses and is stopped. A version that fails gets no request, and is not retried until the alias
has moved. While the registry is unreachable, the active version keeps serving.
"""

import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from typing import Any

from baton.infra.progress import say
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError
from baton.tasks.models.adapter_base import open_model
from baton.tasks.publish.aliases import Version, is_registered, version_at
from baton.tasks.serve.active import POLL_S, Active
from baton.tasks.serve.fetched import fetch, remove_fetched
from baton.tasks.serve.server import Served, Server, ServerFailed, server_log
from baton.tasks.serve.switch import Backend, now


@dataclass
class Follower:
    """Makes the version of `name` that has `alias` the active model."""

    name: str
    alias: str
    every_s: float  # poll interval of the registry
    active: Active
    serving: Version | None = None
    refused: Version | None = None
    registered: bool = True  # whether there is a model of this name
    last_message: str = ""

    def run(self, stopping: Event) -> None:
        """Follow until `stopping`, then stop every server. The active server is watched in a separate thread, so that
        neither a hanging registry nor a loading version delays its replacement."""
        self._set_status(following={"name": self.name, "alias": self.alias}, coming=None, refused=None)
        try:
            with ThreadPoolExecutor() as pool:
                jobs = [pool.submit(self._follow, stopping), pool.submit(self.active.watch, stopping)]
                wait(jobs, return_when=FIRST_EXCEPTION)
                stopping.set()
            for job in jobs:
                job.result()
        finally:
            self.active.stop()

    def _follow(self, stopping: Event) -> None:
        while not stopping.is_set():
            self._update(stopping)
            stopping.wait(self.every_s)

    def _update(self, stopping: Event) -> None:
        """Query the registry once, and switch versions if necessary."""
        target = self._target(stopping)
        if target is None or _is_same(target, self.serving):
            return
        if self.serving and self.serving.digest == target.digest:
            say(f"{_titled(target)} is the model that is already serving")
            self.serving = target
            self.active.rename(target.version, partial(self._model, target))
        else:
            self._remove_others(target)  # a disk need not have room for a third
            self._switch_to(target, stopping)
        self._remove_others(target)

    def _remove_others(self, target: Version) -> None:
        """Remove the fetched models that are neither active nor the target of the alias, and their logs."""
        kept = [version for version in (self.serving, target) if version]
        try:
            removed = remove_fetched(self.name, but={version.content for version in kept})
        except (ArtifactError, OSError) as error:
            self._say_once(f"fetched models could not be removed: {error}")
            return
        for digest in set(removed) - {version.digest for version in kept}:
            server_log(self.name, digest).unlink(missing_ok=True)

    def _target(self, stopping: Event) -> Version | None:
        """Return the version that should serve: the target of the alias, or the active one if there is no target, the
        target has failed, or the registry is unreachable."""
        try:
            target = self._query(stopping)
        except StageError as error:
            self._say_once(f"the registry is unreachable, so {_titled(self.serving)} keeps serving. {error}")
            return self.serving
        if target is None:
            reason = f"has no {self.alias}" if self.registered else "is not a registered model"
            self._say_once(f"{self.name} {reason}, so {_titled(self.serving)} keeps serving")
            return self.serving
        if _is_same(target, self.refused):
            return self.serving
        if self.refused:
            self.refused = None
            self._set_status(refused=None)
        self._say_once(f"{self.alias} is {_titled(target)}")
        return target

    def _query(self, stopping: Event) -> Version | None:
        """Return the version that has the alias. Raises StageError, also as soon as `stopping` is set, since a hanging
        registry must not delay the shutdown."""
        result: Future[Version | None] = Future()

        def query() -> None:
            try:
                target = version_at(self.name, self.alias, patience_s=0)
                self.registered = target is not None or is_registered(self.name, patience_s=0)
                result.set_result(target)
            except BaseException as error:
                result.set_exception(error)

        Thread(target=query, name="registry", daemon=True).start()
        while not stopping.is_set():
            if wait([result], POLL_S).done:
                return result.result()
        raise StageError("the service is shutting down")

    def _switch_to(self, version: Version, stopping: Event) -> None:
        """Start the version's server and, if it is healthy and the version still has the alias, send it the
        requests."""
        self._set_status(coming=_status(version))
        try:
            server = self._start(version, stopping)
        except (ServerFailed, ArtifactError) as error:
            self._refuse(version, error, stopping)
        except (StageError, OSError) as error:  # fetching its files failed: unreachable registry, full disk
            self._say_once(f"{_titled(version)} cannot be fetched; retrying. {error}")
        else:
            backend = Backend(server.url, version.digest, version.version, key=server.key)
            self.active.activate(server, backend, partial(self._model, version))
            self.serving = version
            say(f"✓ {_titled(version)} is serving after {server.age_s():.0f} s")
        finally:
            self._set_status(coming=None)

    def _start(self, version: Version, stopping: Event) -> Server:
        """Start the version's server. Raises ServerFailed, ArtifactError, StageError, leaving no process."""
        queried = time.monotonic()

        def cancelled() -> bool:
            nonlocal queried
            if time.monotonic() - queried > self.every_s:
                moved, queried = self._moved_from(version, stopping), time.monotonic()
                return moved
            return stopping.is_set()

        server = self.active.start_healthy(self._model(version), _titled(version), cancelled)
        if stopping.is_set() or self._moved_from(version, stopping):
            server.stop()
            raise ServerFailed("the alias has moved on")
        return server

    def _model(self, version: Version) -> Served:
        return Served(open_model(fetch(version)), version.digest, self.name)

    def _moved_from(self, version: Version, stopping: Event) -> bool:
        """Return whether the alias is known to have moved."""
        try:
            target = self._query(stopping)
        except StageError:
            return False
        return not _is_same(version, target)

    def _refuse(self, version: Version, error: Exception, stopping: Event) -> None:
        if stopping.is_set():
            return
        if self._moved_from(version, stopping):
            say(f"{_titled(version)} got no request: {self.alias} has moved on")
            return
        self.refused = version
        self._set_status(refused=_status(version) | {"why": str(error)})
        say(
            f"✗ {_titled(version)} gets no request, {_titled(self.serving)} keeps serving. It is retried once "
            f"{self.alias} has moved away and back. {error}"
        )

    def _set_status(self, **status: Any) -> None:
        self.active.switch.status |= status

    def _say_once(self, message: str) -> None:
        if message != self.last_message:
            self.last_message = message
            say(message)


def _is_same(version: Version, other: Version | None) -> bool:
    """Return whether both are the same version. The number alone is not enough: in a registry that was restored, and
    for a model that was deleted there and published again, numbers start with 1 again."""
    return other is not None and (version.version, version.content) == (other.version, other.content)


def _titled(version: Version | None) -> str:
    return f"version {version.version} ({version.digest[:12]})" if version else "no version"


def _status(version: Version) -> dict[str, Any]:
    return {"version": version.version, "model": version.digest, "since": now()}
