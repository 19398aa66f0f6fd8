"""The generations of a model, read from the registry, which is the ledger of continuous training.

A generation is a version with a decision; its tags, written by `publish` and `promote`, have its parts and its outcome.
There is no other state: the position of the champion determines which generations are accepted.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from baton.infra.commands import command
from baton.infra.paths import located
from baton.infra.storage.buckets import StorageError, is_bucket
from baton.infra.text import clause
from baton.infra.tracking.set_aside import OUTCOME_TAG, PARENT_TAG, set_aside
from baton.tasks.artifacts import Artifact
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError, Manifest
from baton.tasks.core.stored import manifest_at
from baton.tasks.data.artifact import Corpus, TokenizedCorpus, Tokenizer
from baton.tasks.models.artifact import HFModel
from baton.tasks.pretrain.artifact import MegatronCheckpoint, MegatronWeights
from baton.tasks.promote.rule import KEPT, PROMOTED
from baton.tasks.publish.aliases import CHAMPION, Version, compared_champion, version_at, versions
from baton.tasks.publish.registry import PART_TAG, PATIENCE_S

ROLLED_BACK = "rolled_back"
PARTS: dict[str, type[Artifact]] = {
    "corpus": Corpus,
    "shards": TokenizedCorpus,
    "checkpoint": MegatronCheckpoint,
    "tokenizer": Tokenizer,
    "start": MegatronWeights,
    "from_base": HFModel,
    "model": HFModel,
}


class LedgerError(StageError):
    """Raised if a generation's artifact cannot be loaded."""


class NoChampion(LedgerError):
    """Raised if the alias of the champion was deleted."""


@dataclass(frozen=True)
class GenerationArtifact:
    """An artifact of a generation: the model or one of its inputs."""

    name: str  # a key of PARTS
    digest: str
    place: str  # a path or an address in storage


@dataclass(frozen=True)
class Generation:
    """One version of a registered model and the artifacts from which it was made."""

    name: str
    number: int  # 1, 2, … for versions with a decision; 0 for one without
    version: int
    outcome: str  # promoted, kept, rejected; rolled_back: promoted or kept, and later set aside
    parts: dict[str, GenerationArtifact]

    @property
    def accepted(self) -> bool:
        """True if training continues from this generation and its text is replayed."""
        return self.outcome in (PROMOTED, KEPT)

    @property
    def rolled_back(self) -> bool:
        """True if this generation was accepted and is now set aside."""
        return self.outcome == ROLLED_BACK

    def part(self, name: str) -> GenerationArtifact:
        """Return the artifact of this name. Raises LedgerError if the registry has no record of it."""
        if name not in self.parts:
            raise LedgerError(
                f"{self.name} version {self.version}: the registry does not say which {name} it was made from: it was "
                "published by hand or by an older version of Baton; use another name for continuous training"
            )
        return self.parts[name]


def generations(name: str, patience_s: float = PATIENCE_S) -> list[Generation]:
    """Return the versions with a decision, oldest first. Raises StageError if the registry stays unreachable."""
    decided = [version for version in versions(name, patience_s) if OUTCOME_TAG in version.tags]
    made = [_generation(version, number) for number, version in enumerate(decided, 1)]
    at = version_at(name, CHAMPION, patience_s)
    tags = {
        each.version: version.tags if PARENT_TAG in version.tags else version.tags | _parent(each, made)
        for each, version in zip(made, decided, strict=True)
    }
    aside = set_aside(tags, at.version if at else None)
    return [replace(each, outcome=ROLLED_BACK) if each.version in aside else each for each in made]


def champion(name: str, patience_s: float = PATIENCE_S) -> Generation | None:
    """Return the champion for the comparison, however it was promoted; None before the first promotion. Raises
    NoChampion, and StageError if the registry stays unreachable."""
    version = compared_champion(name, patience_s)
    known = {generation.version: generation for generation in generations(name, patience_s)}
    if version is None:
        if promoted := [number for number, generation in known.items() if generation.outcome == PROMOTED]:
            restore = command(f"baton rollback {name} --to {promoted[-1]}")
            raise NoChampion(
                f"{name} has no champion, although versions {', '.join(map(str, promoted))} were promoted: the alias "
                f"was deleted. Restore it: {restore}"
            )
        return None
    return known.get(version.version) or _generation(version, 0)


def load(part: GenerationArtifact) -> Artifact:
    """Load an artifact at its place. Outside buckets its files must exist with their sizes; each stage that reads them
    checks their contents. Raises LedgerError."""
    return PARTS[part.name].described(part.place, manifest_of(part))


def manifest_of(part: GenerationArtifact) -> Manifest:
    """Read an artifact's manifest, and check its files as described in `load`. Raises LedgerError."""
    kind = PARTS[part.name]
    try:
        manifest = manifest_at(part.place)
        if (manifest.kind, manifest.digest) != (kind.kind, part.digest):
            raise LedgerError(
                f"{part.place} has the {manifest.kind} {manifest.digest[:12]}, not the {kind.kind} {part.digest[:12]} "
                "that the registry expects there: put that back, or start over under another name in the registry"
            )
        if not is_bucket(part.place):
            _check_sizes(Path(part.place), manifest)
        return manifest
    except (ArtifactError, OSError) as error:
        raise LedgerError(
            f"the {part.name} {part.digest[:12]} of an earlier generation cannot be loaded: {clause(error)}. Put its "
            f"files back to {part.place}, or start over under another name in the registry"
        ) from error


def _check_sizes(directory: Path, manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        if (size := (directory / name).stat().st_size) != entry.size:
            raise ArtifactError(f"{directory / name} has {size} bytes, not {entry.size}")


def _parent(generation: Generation, known: list[Generation]) -> dict[str, str]:
    """Return the tag that a version published by an older Baton lacks, from the manifest of its checkpoint if that can
    be read."""
    try:
        resumed = manifest_at(generation.part("checkpoint").place).parents.get("resume.0")
    except (LedgerError, ArtifactError, StorageError, OSError):
        return {}
    older = [each for each in known[: generation.number - 1] if "checkpoint" in each.parts]
    found = [each.version for each in older if each.parts["checkpoint"].digest == resumed]
    return {PARENT_TAG: str(max(found, default=0))}


def _generation(version: Version, number: int) -> Generation:
    tags = {name: version.tags.get(f"{PART_TAG}{name}", "").partition(" ") for name in PARTS}
    return Generation(
        name=version.name,
        number=number,
        version=version.version,
        outcome=version.tags.get(OUTCOME_TAG, ""),
        parts={
            name: GenerationArtifact(name, digest, located(place))
            for name, (digest, _, place) in tags.items()
            if digest
        },
    )
