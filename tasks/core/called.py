"""The call of a DAG for which a stage runs, with its title and the calls before it.

The call reaches the stage in `how`, beside the fields of the spec that are not part of its identity; Flyte's cache
ignores both.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

CALL = "call"  # the key in `how`; no spec has a field of that name


@dataclass(frozen=True)
class Called:
    title: str | None = None
    # the titles of the calls directly before this one, and of those before each call that it depends on, by title
    upstream: Mapping[str, Sequence[str]] = field(default_factory=dict)
    recompute: bool = False  # although Flyte's local cache has the artifact, whose files are gone

    def how(self, rest: dict[str, Any] | None = None) -> str:
        """Return the input `how`. `rest`: the fields of the spec that are not part of its identity."""
        call = {CALL: {"title": self.title, "upstream": {**self.upstream}, "recompute": self.recompute}}
        return json.dumps((rest or {}) | (call if self.title else {}), sort_keys=True)

    def before(self, title: str | None) -> set[str]:
        """The titles of the calls that a call of `upstream` depends on, directly or indirectly."""
        found: set[str] = set()
        waiting = [*self.upstream.get(title or "", ())]
        while waiting:
            if (call := waiting.pop()) not in found:
                found.add(call)
                waiting += self.upstream.get(call, ())
        return found


def read_how(how: str) -> tuple[Called, dict[str, Any]]:
    """Return the call that `Called.how` wrote, and the rest."""
    rest = json.loads(how)
    call = rest.pop(CALL, {})
    return Called(**call), rest


_called = ContextVar[Called | None]("_called", default=None)


def called() -> Called:
    """Return the call that is being executed."""
    return _called.get() or Called()


@contextmanager
def calling(call: Called) -> Iterator[None]:
    """Let runs in the body belong to this call."""
    token = _called.set(call)
    try:
        yield
    finally:
        _called.reset(token)
