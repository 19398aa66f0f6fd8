"""The options of a stage's run: the typed input of its task beside the spec. No result depends on them (see
tasks/core/inputs.py), so Flyte's cache ignores this input."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel, ConfigDict

from baton.infra.placement.config import Placement
from baton.infra.pod_spec import PodSpec

OPTIONS = "options"  # name of the input


class Options(BaseModel):
    """The call of a DAG for which a stage runs, and the fields of its spec outside the identity."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str | None = None  # title of the call; None: a workflow called the stage itself
    # the titles of the calls directly before this one, and of those before each call that it depends on, by title
    upstream: Mapping[str, Sequence[str]] = {}
    recompute: bool = False  # although Flyte's local cache has the artifact, whose files are gone
    fields: dict[str, Any] = {}  # see `Spec.split_options`

    @property
    def placement(self) -> Placement | None:
        """The placement of the stage, if it does not run on this machine."""
        given = self.fields.get("placement")
        return given and Placement.model_validate(given)

    def pod(self, default: PodSpec) -> PodSpec:
        """Return the pod of the stage, with the parts of its default that the recipe does not replace."""
        return PodSpec.model_validate(self.fields.get("pod") or {}).over(default)

    def before(self, title: str | None) -> set[str]:
        """Return the titles of the calls that a call of `upstream` depends on, directly or indirectly."""
        found: set[str] = set()
        waiting = [*self.upstream.get(title or "", ())]
        while waiting:
            if (call := waiting.pop()) not in found:
                found.add(call)
                waiting += self.upstream.get(call, ())
        return found


_current = ContextVar[Options | None]("_current", default=None)


def current_options() -> Options:
    """Return the options of the stage that is being executed."""
    return _current.get() or Options()


@contextmanager
def running_with(options: Options) -> Iterator[None]:
    """Let `current_options` return these options in the body."""
    token = _current.set(options)
    try:
        yield
    finally:
        _current.reset(token)
