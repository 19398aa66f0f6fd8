"""Artifacts in storage, which are uploaded once, downloaded once, and verified by their digests.

STORAGE/artifacts/<identity>/…    complete once it has its manifest.json, which is sent last
CACHE/artifacts/<identity>/…      a download; CACHE is BATON_CACHE, which a node's pods may share, or Baton's home
CACHE/parts/<key>/…               the manifest and some files of an artifact, for stages that need no others

Artifacts with equal files but other facts have separate folders.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

from baton.infra.paths import cache_folder
from baton.infra.storage import buckets as storage
from baton.infra.storage.buckets import StorageError, is_bucket
from baton.infra.storage.cached_folder import cached_folder
from baton.infra.storage.durable import make_folder, remove, sync_tree, write_text
from baton.infra.text import clause
from baton.tasks.core.manifest import (
    ALL,
    ALL_AND_RECORD,
    MANIFEST,
    RECORD,
    ArtifactError,
    Manifest,
    digest_in,
    json_key,
    matches,
    parse_manifest,
    read_manifest,
    verify,
)

DAMAGED = "damaged-manifest.json"  # the manifest of a damaged artifact
RECREATE_HINT = "Run the same command with --overwrite-cache: only missing results are recomputed"


def send(directory: str, root: str) -> str:
    """Return the address of a complete directory below the storage `root`, after uploading it if necessary. Raises
    ArtifactError, StorageError."""
    if is_bucket(directory) or directory.startswith(f"{root}/"):
        return directory
    manifest = read_manifest(Path(directory))
    address = f"{root}/artifacts/{manifest.identity or manifest.digest}"
    known = storage.sizes(address)
    if MANIFEST not in known or _missing(manifest, known):
        send_sealed(Path(directory), address, known)
    return address


def send_sealed(folder: Path, address: str, known: dict[str, int], stop: threading.Event | None = None) -> bool:
    """Upload a directory with a manifest, the manifest last. `known` has the sizes of the files that are already
    stored. Return False if `stop` was set. Raises StorageError."""
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    missing = [name for name, size in sizes.items() if name != MANIFEST and known.get(name) != size]
    storage.put(folder, missing, address, stop)
    if stop is not None and stop.is_set():
        return False
    if lost := _missing(read_manifest(folder), storage.sizes(address)):
        raise StorageError(f"{address}: {', '.join(lost[:3])}: missing or truncated after the upload", curable=True)
    storage.write(f"{address}/{MANIFEST}", (folder / MANIFEST).read_bytes())
    return True


def manifest_at(place: str) -> Manifest:
    """Return the manifest in a folder or at an address. Raises ArtifactError, StorageError."""
    if not is_bucket(place):
        return read_manifest(Path(place))
    try:
        return parse_manifest(storage.read(f"{place}/{MANIFEST}"), f"{place}/{MANIFEST}")
    except FileNotFoundError:
        raise ArtifactError(f"{place}: no {MANIFEST}, so there is no complete artifact. {RECREATE_HINT}") from None


def is_complete(place: str) -> bool:
    """Return whether there is a valid manifest. Raises StorageError."""
    try:
        manifest_at(place)
    except ArtifactError:
        return False
    return True


def check_sizes(place: str, digest: str) -> Manifest:
    """Return the artifact's manifest, after checking that all its files exist with the right sizes. Raises
    ArtifactError, StorageError."""
    manifest = _expected(place, digest)
    _sizes(place, manifest)
    return manifest


def fetch(place: str, digest: str, patterns: Sequence[str] = ALL) -> Path:
    """Download an artifact, unless it is in the cache, check its files against the digest, and return its local
    directory. Only files that match a pattern are sure to be there. Raises ArtifactError, StorageError."""
    cache, identity = cache_folder("artifacts"), place.rpartition("/")[2]
    if digest_in(identity) != digest:  # the address has another form, such as that of a job's output
        identity = _expected(place, digest).identity or digest
    key, complete = identity, {*ALL} <= {*patterns} or (cache / identity / MANIFEST).exists()
    if not complete:
        cache, key = cache_folder("parts"), json_key([identity, *patterns])

    def fault(folder: Path) -> str:
        try:
            verify(folder, digest, patterns)
        except ArtifactError as error:
            return str(error)
        return ""

    def fill(folder: Path) -> None:
        _download_verified(place, digest, folder, ALL_AND_RECORD if complete else patterns)

    return cached_folder(cache / key, fault, fill)


def download(place: str, manifest: Manifest, folder: Path, patterns: Sequence[str] = ALL) -> None:
    """Download the files of a manifest and of the record that match a pattern, and last the manifest.
    Their contents are not checked. Raises ArtifactError, StorageError."""
    known = _sizes(place, manifest)
    listed = {name: known[name] for name in known if name in manifest.files or name.startswith(f"{RECORD}/")}
    file_sizes = {name: size for name, size in listed.items() if matches(name, patterns)}
    make_folder(folder)
    try:
        storage.get(place, file_sizes, folder)
        text = storage.read(f"{place}/{MANIFEST}").decode()
    except FileNotFoundError as error:  # it was removed meanwhile
        raise ArtifactError(f"{place}: {clause(error)}. {RECREATE_HINT}") from error
    sync_tree(folder)
    write_text(folder / MANIFEST, text)


def _download_verified(place: str, digest: str, folder: Path, patterns: Sequence[str]) -> None:
    for last in (False, True):
        manifest = _expected(place, digest)
        download(place, manifest, folder, patterns)
        try:
            verify(folder, digest, patterns)
        except ArtifactError as error:
            remove(folder)
            if last:
                mark_damaged(place)
                raise ArtifactError(
                    f"{manifest.kind} {digest[:12]} at {place} is damaged: {error} Its manifest was renamed to "
                    f"{DAMAGED}, so that no run relies on it. {RECREATE_HINT}"
                ) from error
        else:
            return


def mark_damaged(place: str) -> None:
    """Mark an artifact as damaged by renaming its manifest; its files remain for inspection. Raises StorageError."""
    storage.write(f"{place}/{DAMAGED}", storage.read(f"{place}/{MANIFEST}"))
    storage.delete(place, [MANIFEST])


def _expected(place: str, digest: str) -> Manifest:
    manifest = manifest_at(place)
    if manifest.digest != digest:
        raise ArtifactError(
            f"{place} has {manifest.kind} {manifest.digest[:12]}, not the expected {digest[:12]}. {RECREATE_HINT}"
        )
    return manifest


def _sizes(place: str, manifest: Manifest) -> dict[str, int]:
    """Return the sizes of all files at a place. Raises ArtifactError if one of the manifest's files is missing or
    truncated."""
    known = storage.sizes(place)
    if missing := _missing(manifest, known):
        name = f"{manifest.kind} {manifest.digest[:12]} at {place}"
        raise ArtifactError(f"{name}: {', '.join(missing[:3])}: missing or truncated. {RECREATE_HINT}")
    return known


def _missing(manifest: Manifest, known: dict[str, int]) -> list[str]:
    """Return the manifest's files that are missing or have another size."""
    return [name for name, entry in sorted(manifest.files.items()) if known.get(name) != entry.size]
