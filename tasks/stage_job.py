"""A job: one stage's engine with its spec and its inputs, before anything is looked up or run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from baton.infra.process.launch import Engine, Launch
from baton.tasks.artifacts import Artifact
from baton.tasks.core.manifest import ALL
from baton.tasks.core.offsite import Offsite
from baton.tasks.core.spec import Spec

A = TypeVar("A", bound=Artifact)

NODE_0 = "node 0 returns the result"

# digests of artifacts from stages of this process, new or finished earlier, as opposed to those from Flyte's cache
produced: set[str] = set()


@dataclass(frozen=True)
class Reads:
    """The part of its inputs that an engine reads; by default all files.

    `files` has patterns of the files that the engine needs of an input, a list or an item of a list (none: the manifest
    alone); others are neither fetched nor verified. Those of the record are given only if they are named, here or in
    `checks` (tasks/core/inputs.py)."""

    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    checks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    on_demand: str = ""  # an input that the engine itself fetches from storage, as far as it needs it
    implied: Collection[str] = ()  # inputs that are ancestors of others, and are not recorded as the artifact's parents

    def needed(self, name: str) -> tuple[str, ...]:
        """The patterns of an input that are in the job's identity."""
        return tuple(self.files.get(name) or self.files.get(_group(name), ALL))

    def patterns(self, name: str) -> tuple[str, ...]:
        """All patterns of an input."""
        return (*self.needed(name), *self.checks.get(_group(name), ()))

    def is_on_demand(self, name: str) -> bool:
        return _group(name) == self.on_demand


@dataclass(frozen=True)
class StageJob(Generic[A]):
    """A job, its folder on this machine, and that in storage for a job in a pod, whose disk is lost with it."""

    title: str  # of the run on the pages and in MLflow
    engine: Engine
    artifact_type: type[A]
    spec: Spec
    inputs: dict[str, Artifact]  # an item of a list or mapping is named more.0, parts.corpus
    launch: Launch
    reads: Reads
    folder: Path
    remote: Offsite | None

    @property
    def parents(self) -> dict[str, str]:
        """The digests of the inputs that are recorded as the artifact's parents."""
        return {name: artifact.digest for name, artifact in self.inputs.items() if name not in self.reads.implied}

    def spec_json(self) -> dict[str, Any]:
        return self.spec.model_dump(mode="json")


def _group(name: str) -> str:
    """The input that an item of a list or mapping belongs to."""
    return name.partition(".")[0]
