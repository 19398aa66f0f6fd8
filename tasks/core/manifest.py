"""The manifest, which makes a directory an artifact.

`manifest.json` lists every file with its size and BLAKE3 digest, the artifact's spec, facts and parents' digests, and
the package versions. It is written last and atomically, when all listed files are on disk, so that a directory without
a valid manifest is not an artifact. The artifact's *digest* is BLAKE3 over only the sorted (path, size, file digest)
lines, so that it depends on the content alone. Files under `record/` (metrics with their times, samples, plots)
document the run and are not part of the result: they are stored with it, but are not in the digest.

Facts are not in the digest either, so that equal files are one artifact. The *identity* consists of the digest and the
facts; cache keys are derived from identities, since a stage reads both (tasks/core/inputs.py).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from blake3 import blake3

from baton.infra.storage.durable import sync_tree, write_text
from baton.infra.versions import package_versions

MANIFEST = "manifest.json"
RECORD = "record"
ALL = ("*",)  # the patterns of all files of the content
ALL_AND_RECORD = ("*", f"{RECORD}/*", MANIFEST)  # patterns of these, the record and the manifest
_MANIFESTS = re.compile(r"manifest\.json(\.[0-9a-f]+\.partial)?")  # including a killed writer's partial manifest


class ArtifactError(Exception):
    """Raised if an artifact is missing or incomplete, or does not match its digest."""


@dataclass(frozen=True)
class FileEntry:
    size: int  # bytes
    blake3: str  # hex


@dataclass(frozen=True)
class Manifest:
    kind: str
    digest: str
    files: dict[str, FileEntry]
    facts: dict[str, Any]
    spec: dict[str, Any] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)  # input name -> digest
    versions: dict[str, str] = field(default_factory=dict)
    title: str = ""  # title of the run that made it; empty if no stage did
    identity: str = ""  # empty if it was written before facts were part of cache keys
    identities: dict[str, str] = field(default_factory=dict)  # the parents' identities, their names in storage
    display: dict[str, Any] = field(default_factory=dict)  # fields of its Artifact that no stage reads: layout, place

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of the Artifact."""
        return self.facts | self.display


def file_digest(path: Path) -> str:
    """Return the BLAKE3 of a file's content in hex, computed memory-mapped and on all cores."""
    hasher = blake3(max_threads=blake3.AUTO)
    if path.stat().st_size:
        hasher.update_mmap(path)
    return hasher.hexdigest()


def text_digest(text: str) -> str:
    return blake3(text.encode()).hexdigest()


def json_key(value: Any) -> str:
    """Return a hex key of a JSON value."""
    return blake3(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def identity_of(kind: str, digest: str, facts: dict[str, Any]) -> str:
    """Return the digest, followed by a key of the kind and the facts."""
    return f"{digest}-{json_key([kind, facts])[:16]}"


def digest_in(identity: str) -> str:
    """Return the digest in an identity."""
    return identity.partition("-")[0]


def content_digest(directory: Path) -> str:
    """Return the digest that the directory would get from `write_manifest`."""
    return _digest_of({name: FileEntry(path.stat().st_size, file_digest(path)) for name, path in _content(directory)})


def write_manifest(
    directory: Path,
    kind: str,
    facts: dict[str, Any],
    spec: dict[str, Any] | None = None,
    parents: dict[str, str] | None = None,
    known: dict[str, FileEntry] | None = None,
    title: str = "",
    display: dict[str, Any] | None = None,
    identities: dict[str, str] | None = None,
) -> Manifest:
    """Seal a directory: sync its files, digest them unless their digests are `known`, then write manifest.json
    atomically. After the return, the artifact survives a power cut. `display` has fields of the Artifact that depend on
    the machine or the layout, which no other stage can read."""
    sync_tree(directory)
    known = known or {}
    files = {
        name: known.get(name) or FileEntry(path.stat().st_size, file_digest(path)) for name, path in _content(directory)
    }
    digest = _digest_of(files)
    manifest = Manifest(
        kind, digest, files, facts, spec or {}, parents or {}, package_versions(), title,
        identity_of(kind, digest, facts), identities or {}, display or {},
    )  # fmt: skip
    write_text(directory / MANIFEST, json.dumps(asdict(manifest), indent=1, sort_keys=True))
    return manifest


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest without checking the files. Raises ArtifactError."""
    path = directory / MANIFEST
    try:
        return parse_manifest(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise ArtifactError(f"{directory}: no {MANIFEST}, so the artifact is incomplete; recompute it") from None


def parse_manifest(text: bytes, place: str) -> Manifest:
    """Parse a manifest that was read from `place`. Raises ArtifactError."""
    try:
        raw = json.loads(text)
        files = {name: FileEntry(**entry) for name, entry in raw.pop("files").items()}
        manifest = Manifest(files=files, **raw)
        if not isinstance(manifest.digest, str):
            raise TypeError(f"digest is {manifest.digest!r}, not a string")
        return manifest
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{place}: not a manifest ({error}); recompute the artifact") from error


def verify(directory: Path, digest: str | None = None, patterns: Sequence[str] = ALL, origin: str = "") -> Manifest:
    """Check the files against the manifest, and the manifest against `digest`. Files whose names match none of the
    patterns (as in fnmatch) may be missing and are not checked. Raises ArtifactError with the artifact's kind and
    digest, its folder (`origin`, if the directory only has links to it), and every file that differs."""
    manifest = read_manifest(directory)
    name = f"{manifest.kind} {manifest.digest[:12]} in {origin or directory}"
    if digest is not None and manifest.digest != digest:
        raise ArtifactError(f"{name}: another artifact than expected, which has digest {digest[:12]}")
    if _digest_of(manifest.files) != manifest.digest:
        raise ArtifactError(f"{name}: the manifest's file list was changed; recompute the artifact")
    if manifest.identity and manifest.identity != identity_of(manifest.kind, manifest.digest, manifest.facts):
        raise ArtifactError(f"{name}: the manifest's facts were changed; recompute the artifact")
    wrong = wrong_files(directory, manifest, patterns=patterns)
    if wrong:
        raise ArtifactError(f"{name}: {'; '.join(wrong)}. Delete the directory and run again to recreate it.")
    return manifest


def wrong_files(
    directory: Path, manifest: Manifest, part: int = 0, parts: int = 1, patterns: Sequence[str] = ALL
) -> list[str]:
    """Return the differences from the manifest in the files that match a pattern. The contents of only one `part` of
    `parts` are checked, so that processes can share the work."""
    paths = {name: path for name, path in _content(directory) if matches(name, patterns)}
    files = {name: entry for name, entry in manifest.files.items() if matches(name, patterns)}
    wrong = [f"{path} is missing" for path in sorted(files.keys() - paths.keys())]
    wrong += [f"{path} was added" for path in sorted(paths.keys() - files.keys())]
    for path, entry in sorted(files.items())[part::parts]:
        if path not in paths:
            continue
        size = paths[path].stat().st_size
        if size != entry.size:
            wrong.append(f"{path} has {size} bytes, not {entry.size}")
        elif file_digest(paths[path]) != entry.blake3:
            wrong.append(f"{path} was changed")
    return wrong


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a file's name matches one of the patterns, in which `*` also matches `/`. A file of the record
    matches only patterns that begin with `record/`."""
    recorded = name.startswith(f"{RECORD}/")
    return any(fnmatchcase(name, pattern) for pattern in patterns if pattern.startswith(f"{RECORD}/") == recorded)


def _content(directory: Path) -> list[tuple[str, Path]]:
    """Return (relative name, path) of every file that belongs to the content, sorted."""
    entries = []
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        if path.is_file() and name.parts[0] != RECORD and not _MANIFESTS.fullmatch(name.as_posix()):
            entries.append((name.as_posix(), path))
    return entries


def _digest_of(files: dict[str, FileEntry]) -> str:
    lines = "".join(f"{name}\0{entry.size}\0{entry.blake3}\n" for name, entry in sorted(files.items()))
    return text_digest(lines)
