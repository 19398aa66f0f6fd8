"""The manifest: what makes a directory an artifact.

`manifest.json` lists every file with its size and BLAKE3 digest, the artifact's spec, facts and parents' digests, and
the package versions. It is written last and atomically, when all listed files are on disk: a directory without a valid
manifest is not an artifact. The artifact's *digest* is BLAKE3 over the sorted (path, size, file digest) lines alone, so
that it depends on the content and on nothing else. Files under `record/` (metrics with their times, samples, plots)
document the run and are not part of the result: they are stored with it, but are not in the digest.

Facts are not in the digest either, so that equal files stay one artifact. The *identity* is the digest and the facts:
cache keys are made of identities, since a stage reads both (tasks/core/inputs.py).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from blake3 import blake3

from infra.storage.durable import sync_tree, write_text
from infra.versions import package_versions

MANIFEST = "manifest.json"
RECORD = "record"
ALL = ("*",)  # the patterns of all files of the content
ALL_AND_RECORD = ("*", f"{RECORD}/*", MANIFEST)  # and of what documents the run
_MANIFESTS = re.compile(r"manifest\.json(\.[0-9a-f]+\.partial)?")  # also a killed writer's partial one


class ArtifactError(Exception):
    """An artifact is missing, incomplete, or not what its digest says."""


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
    title: str = ""  # of the run that made it; empty for what no stage made
    identity: str = ""  # empty: written before facts were part of cache keys
    identities: dict[str, str] = field(default_factory=dict)  # of the parents, by which they are named in storage
    display: dict[str, Any] = field(default_factory=dict)  # fields of its Artifact that no stage reads: layout, place

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its Artifact."""
        return self.facts | self.display


def file_digest(path: Path) -> str:
    """BLAKE3 of a file's content, hex, memory-mapped and on all cores."""
    hasher = blake3(max_threads=blake3.AUTO)
    if path.stat().st_size:
        hasher.update_mmap(path)
    return hasher.hexdigest()


def text_digest(text: str) -> str:
    return blake3(text.encode()).hexdigest()


def json_key(value: Any) -> str:
    """A key, hex, of what JSON can say."""
    return blake3(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def identity_of(kind: str, digest: str, facts: dict[str, Any]) -> str:
    """The digest, followed by a key of the kind and the facts."""
    return f"{digest}-{json_key([kind, facts])[:16]}"


def digest_in(identity: str) -> str:
    """The digest in an identity."""
    return identity.partition("-")[0]


def content_digest(directory: Path) -> str:
    """The digest that the directory would get from `write_manifest`."""
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
    """Seal a directory: digest and sync its files (except the digests that are already `known`), then write
    manifest.json atomically. When it returns, the artifact survives a power cut. `display` has fields of the Artifact
    that depend on the machine or the layout, which no other stage can read."""
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
    """The manifest as written; the files are not checked. Raises ArtifactError."""
    path = directory / MANIFEST
    try:
        return parse_manifest(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise ArtifactError(f"{directory}: no {MANIFEST}, so the artifact is incomplete; make it again") from None


def parse_manifest(text: bytes, place: str) -> Manifest:
    """A manifest that was read from `place`. Raises ArtifactError."""
    try:
        raw = json.loads(text)
        files = {name: FileEntry(**entry) for name, entry in raw.pop("files").items()}
        manifest = Manifest(files=files, **raw)
        if not isinstance(manifest.digest, str):
            raise TypeError(f"digest is {manifest.digest!r}, not a string")
        return manifest
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{place}: not a manifest ({error}); make the artifact again") from error


def verify(directory: Path, digest: str | None = None, patterns: Sequence[str] = ALL, origin: str = "") -> Manifest:
    """Check the files against the manifest, and the manifest against `digest`. Files whose names match none of the
    patterns (as in fnmatch) may be missing and are not checked. Raises ArtifactError with the artifact's kind and
    digest, its folder (`origin`, if the directory only has links to it), and every file that differs."""
    manifest = read_manifest(directory)
    name = f"{manifest.kind} {manifest.digest[:12]} in {origin or directory}"
    if digest is not None and manifest.digest != digest:
        raise ArtifactError(f"{name}: another artifact than expected, which has digest {digest[:12]}")
    if _digest_of(manifest.files) != manifest.digest:
        raise ArtifactError(f"{name}: the manifest's file list was changed; make the artifact again")
    if manifest.identity and manifest.identity != identity_of(manifest.kind, manifest.digest, manifest.facts):
        raise ArtifactError(f"{name}: the manifest's facts were changed; make the artifact again")
    wrong = wrong_files(directory, manifest, patterns=patterns)
    if wrong:
        raise ArtifactError(f"{name}: {'; '.join(wrong)}. Delete the directory and run again to recreate it.")
    return manifest


def wrong_files(
    directory: Path, manifest: Manifest, part: int = 0, parts: int = 1, patterns: Sequence[str] = ALL
) -> list[str]:
    """The differences from the manifest in the files that match a pattern. Their contents are checked for one `part` of
    `parts` only, so that processes can share the work."""
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
    """Whether a file's name matches one of the patterns, in which `*` stands for `/` too. A file of the record matches
    only patterns that begin with `record/`."""
    recorded = name.startswith(f"{RECORD}/")
    return any(fnmatchcase(name, pattern) for pattern in patterns if pattern.startswith(f"{RECORD}/") == recorded)


def _content(directory: Path) -> list[tuple[str, Path]]:
    """(relative name, path) of every file that belongs to the content, sorted."""
    entries = []
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        if path.is_file() and name.parts[0] != RECORD and not _MANIFESTS.fullmatch(name.as_posix()):
            entries.append((name.as_posix(), path))
    return entries


def _digest_of(files: dict[str, FileEntry]) -> str:
    lines = "".join(f"{name}\0{entry.size}\0{entry.blake3}\n" for name, entry in sorted(files.items()))
    return text_digest(lines)
