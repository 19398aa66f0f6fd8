"""The typed artifacts that stages exchange: a directory, its digest, and the facts the next stage needs.

With the facts the next stage can reject bad input before it spends compute. The same facts are in the directory's
`manifest.json`; `from_directory` reads them back. Each kind of artifact is a class in `artifact.py` of the package of
the stage that makes it, where `kinds` finds it.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

from flytekit.types.directory import FlyteDirectory
from pydantic import BaseModel, ConfigDict, Field, ValidatorFunctionWrapHandler, field_validator

from baton.infra.paths import located
from baton.infra.storage.buckets import is_bucket
from baton.infra.tracking.relations import Relation
from baton.tasks.core.manifest import ALL, ArtifactError, Manifest
from baton.tasks.core.packages import modules
from baton.tasks.core.stored import RECREATE_HINT, fetch, manifest_at


class Artifact(BaseModel):
    """A content-addressed directory. `digest` is BLAKE3 over its file manifest, and `identity` that of its files and
    facts (tasks/core/manifest.py); it is empty if it was made before facts were part of cache keys."""

    model_config = ConfigDict(protected_namespaces=())
    kind: ClassVar[str] = "artifact"  # in a mapping of mixed kinds: the manifest has the actual kind and its facts
    family: ClassVar[str] = "other"  # shape on the lineage pages: data, tokenizer, model, finding, page
    page: ClassVar[str] = "baton.tasks.pages.about:facts"  # the function that makes its page
    order: ClassVar[int] = 1000  # position of the page in a report
    relation: ClassVar[Relation] = Relation()  # to the inputs of its stage

    directory: FlyteDirectory
    digest: str
    identity: str = Field("", repr=False)

    @field_validator("directory", mode="wrap")
    @classmethod
    def _located(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        """Update a path in a home that was moved. Flyte's own check would refuse a local folder that is gone, but not
        every stage that gets an artifact reads its files."""
        if isinstance(value, FlyteDirectory):
            return value
        if isinstance(value, dict) and isinstance(path := value.get("path"), str) and not is_bucket(path):
            return FlyteDirectory(located(path), remote_directory=False)
        return check(value)

    @classmethod
    def from_directory(cls, path: Path) -> Self:
        """The artifact in a directory, by its manifest. Raises ArtifactError."""
        return cls.from_place(str(path))

    @classmethod
    def from_place(cls, place: str) -> Self:
        """The artifact in a directory or at an address, by its manifest. Raises ArtifactError."""
        return cls.described(place, manifest_at(place))

    @classmethod
    def described(cls, place: str, manifest: Manifest) -> Self:
        """The artifact at a place with this manifest."""
        # remote_directory=False: the files stay where they are; Flyte copies nothing
        directory = FlyteDirectory(place, remote_directory=False)
        return cls(directory=directory, digest=manifest.digest, identity=manifest.identity, **manifest.fields)

    def facts(self) -> dict[str, Any]:
        """Return the artifact's fields other than directory and digest, as in its manifest."""
        return self.model_dump(exclude={"directory", "digest", "identity"})

    @property
    def key(self) -> str:
        """The part of the cache keys of stages that stands for this input."""
        return self.identity or self.digest

    def detail(self) -> str:
        """Its main fact, as the lineage pages show it."""
        return self.kind.replace("_", " ")

    def title(self, stage: str) -> str:
        """The title of the run of `stage` that made it."""
        return stage

    @property
    def place(self) -> str:
        """Its location: a path, or a URL in storage."""
        return str(self.directory.remote_source or self.directory.path)

    def at(self, place: str) -> Self:
        """The same artifact at another location: a path or a URL in storage."""
        return self.model_copy(update={"directory": FlyteDirectory(place, remote_directory=False)})

    def manifest(self) -> Manifest:
        """Its manifest, local or in storage; no files are downloaded. Raises ArtifactError."""
        return manifest_at(self.place)

    def local(self, patterns: Sequence[str] = ALL) -> Path:
        """The directory on this machine; if it is elsewhere, the files that match a pattern are downloaded (once).
        Raises ArtifactError."""
        if is_bucket(self.place):
            return fetch(self.place, self.digest, patterns)
        folder = Path(located(self.place))
        if not folder.exists():
            raise ArtifactError(f"{self.kind} in {folder}: its directory is gone. {RECREATE_HINT}")
        return folder


@cache
def kinds() -> dict[str, type[Artifact]]:
    """The kinds of artifacts by name, in the order of a report: those in `artifact.py` of each package of tasks/."""
    found = [value for module in modules("artifact") for value in vars(module).values()]
    classes = {value for value in found if isinstance(value, type) and issubclass(value, Artifact)} - {Artifact}
    return {kind.kind: kind for kind in sorted(classes, key=lambda kind: kind.order)}


def kind_of(name: str) -> type[Artifact]:
    """The kind with this name; Artifact itself for one that a user's function made."""
    return kinds().get(name, Artifact)


def shown(kind: str, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what the lineage pages show of an artifact: its family, its main fact, and its relation to its stage's
    inputs."""
    artifact = kind_of(kind).model_construct(**facts)
    return {"family": artifact.family, "detail": artifact.detail()} | artifact.relation.as_tags()
