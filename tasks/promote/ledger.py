"""The generations of a model: the registry read as the ledger of a continuous training.

A generation is a version that was decided about; its tags, written by `publish` and `promote`, say what it
was made of and what came of it. There is no other state.
"""

from dataclasses import dataclass
from pathlib import Path

from infra.placement.storage import is_bucket
from tasks.artifacts import Artifact, Corpus, HFModel, MegatronCheckpoint, TokenizedCorpus, Tokenizer
from tasks.job import StageError
from tasks.manifest import ArtifactError, Manifest
from tasks.promote.rule import KEPT, PROMOTED
from tasks.publish.aliases import CHAMPION, OUTCOME_TAG, ROLLED_BACK_TAG, Version, version_at, versions
from tasks.publish.registry import PART_TAG, PATIENCE_S
from tasks.stored import manifest_at

ROLLED_BACK = "rolled_back"
PARTS: dict[str, type[Artifact]] = {
    "corpus": Corpus,
    "shards": TokenizedCorpus,
    "checkpoint": MegatronCheckpoint,
    "tokenizer": Tokenizer,
    "from_base": HFModel,
    "model": HFModel,
}


class LedgerError(StageError):
    """What the registry says of a generation cannot be had."""


@dataclass(frozen=True)
class Part:
    """An artifact that a generation was made of, or is."""

    name: str  # of PARTS
    digest: str
    place: str  # a path or an address in storage


@dataclass(frozen=True)
class Generation:
    """One version of a registered model and what it was made of."""

    name: str
    number: int  # 1, 2, … among those that were decided about; 0 for one that was not
    version: int
    outcome: str  # promoted, kept, rejected; rolled_back, whatever it was before
    parts: dict[str, Part]

    @property
    def accepted(self) -> bool:
        """Whether training goes on from it, and its text is replayed."""
        return self.outcome in (PROMOTED, KEPT)

    def part(self, name: str) -> Part:
        """Raises LedgerError where the registry has no word of it."""
        if name not in self.parts:
            raise LedgerError(
                f"{self.name} version {self.version}: the registry does not say which {name} it was made of: it was "
                "published by hand or by an older version; use another name for the models of a continuous training"
            )
        return self.parts[name]


def generations(name: str, patience_s: float = PATIENCE_S) -> list[Generation]:
    """Those that were decided about, oldest first. Raises StageError when the registry stays away."""
    decided = [each for each in versions(name, patience_s) if OUTCOME_TAG in each.tags]
    return [_generation(each, number) for number, each in enumerate(decided, 1)]


def newest_accepted(found: list[Generation]) -> Generation | None:
    """Where the training goes on."""
    return next((each for each in reversed(found) if each.accepted), None)


def champion(name: str, patience_s: float = PATIENCE_S) -> Generation | None:
    """The one that serves, whoever made it so. Raises StageError when the registry stays away."""
    version = version_at(name, CHAMPION, patience_s)
    if version is None:
        return None
    known = {each.version: each for each in generations(name, patience_s)}
    return known.get(version.version) or _generation(version, 0)


def load(part: Part) -> Artifact:
    """The artifact, at its place. Its files must be there in their sizes; their contents are checked by each stage
    that reads them. Raises LedgerError."""
    kind = PARTS[part.name]
    try:
        manifest, artifact = manifest_at(part.place), kind.from_place(part.place)
        if not is_bucket(part.place):
            _check_sizes(Path(part.place), manifest)
    except (ArtifactError, OSError) as error:
        raise LedgerError(
            f"the {part.name} {part.digest[:12]} of an earlier generation cannot be had: {error}. Put its files back "
            f"to {part.place}, or begin anew under another name in the registry"
        ) from error
    if (manifest.kind, manifest.digest) != (kind.kind, part.digest):
        raise LedgerError(
            f"{part.place} holds the {manifest.kind} {manifest.digest[:12]}, not the {kind.kind} {part.digest[:12]} "
            "that the registry says is there: put that back, or begin anew under another name in the registry"
        )
    return artifact


def _check_sizes(directory: Path, manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        if (size := (directory / name).stat().st_size) != entry.size:
            raise ArtifactError(f"{directory / name} has {size} bytes, not {entry.size}")


def _generation(version: Version, number: int) -> Generation:
    told = {name: version.tags.get(f"{PART_TAG}{name}", "").partition(" ") for name in PARTS}
    return Generation(
        name=version.name,
        number=number,
        version=version.version,
        outcome=ROLLED_BACK if ROLLED_BACK_TAG in version.tags else version.tags.get(OUTCOME_TAG, ""),
        parts={name: Part(name, digest, place) for name, (digest, _, place) in told.items() if digest},
    )
