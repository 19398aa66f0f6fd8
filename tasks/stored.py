"""Artifacts in storage: sent there once, fetched once, believed only when their digest says so.

STORAGE/artifacts/<digest>/…    manifest.json last: what has one is complete
CACHE/artifacts/<digest>/…      fetched; CACHE is BATON_CACHE, which the pods of a node may share, or Baton's home
"""

import fcntl
import os
import threading
from pathlib import Path
from uuid import uuid4

from infra.durable import make_folder, rename, sync_tree, write_text
from infra.home import baton_home
from infra.placement import storage
from infra.placement.storage import StorageError, is_bucket
from infra.progress import say
from tasks.manifest import MANIFEST, RECORD, ArtifactError, Manifest, parse_manifest, read_manifest, remove, verify

DAMAGED = "damaged-manifest.json"  # a manifest that is not believed any more
AGAIN = "Run the same command with --overwrite-cache: what is missing is made again, and nothing else"


def send(directory: str, digest: str, where: str) -> str:
    """Where in the storage `where` a complete directory is, put there first if it is not. Raises ArtifactError,
    StorageError."""
    if is_bucket(directory) or directory.startswith(f"{where}/"):
        return directory
    there = f"{where}/artifacts/{digest}"
    known = storage.sizes(there)
    if MANIFEST not in known or _missing(read_manifest(Path(directory)), known):
        send_sealed(Path(directory), there, known)
    return there


def send_sealed(here: Path, there: str, known: dict[str, int], stop: threading.Event | None = None) -> bool:
    """Put a directory with a manifest into storage, the manifest last. `known` files are there already. False: it was
    stopped. Raises StorageError."""
    found = {path.relative_to(here).as_posix(): path.stat().st_size for path in here.rglob("*") if path.is_file()}
    missing = [name for name, size in found.items() if name != MANIFEST and known.get(name) != size]
    storage.put(here, missing, there, stop)
    if stop is not None and stop.is_set():
        return False
    if lost := _missing(read_manifest(here), storage.sizes(there)):
        raise StorageError(f"{there}: {', '.join(lost[:3])}: sent, and not there as sent", curable=True)
    storage.write(f"{there}/{MANIFEST}", (here / MANIFEST).read_bytes())
    return True


def manifest_at(place: str) -> Manifest:
    """The manifest of what is at a place: a folder or an address. Raises ArtifactError, StorageError."""
    if not is_bucket(place):
        return read_manifest(Path(place))
    try:
        return parse_manifest(storage.read(f"{place}/{MANIFEST}"), f"{place}/{MANIFEST}")
    except FileNotFoundError:
        raise ArtifactError(f"{place}: no {MANIFEST}, so no complete artifact is there. {AGAIN}") from None


def is_complete(place: str) -> bool:
    """Whether a manifest is at a place. Raises StorageError."""
    try:
        manifest_at(place)
    except ArtifactError:
        return False
    return True


def look_at(place: str, digest: str) -> Manifest:
    """The manifest of an artifact whose files are all there, by their sizes. Raises ArtifactError, StorageError."""
    manifest = _expected(place, digest)
    _sizes(place, manifest)
    return manifest


def fetch(place: str, digest: str) -> Path:
    """An artifact at an address, on this machine, its files checked against the digest; at once when it is in the
    cache. Raises ArtifactError, StorageError."""
    cache = Path(os.environ.get("BATON_CACHE") or baton_home()) / "artifacts"
    here = cache / digest
    make_folder(cache)
    with (cache / f"{digest}.lock").open("a") as lock:  # another process may be fetching it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (here / MANIFEST).exists():
            try:
                verify(here, digest)
            except ArtifactError as error:
                say(f"{error} Fetching it again.")
            else:
                return here
        remove(here)
        for left in cache.glob(f"{digest}.*.partial"):  # by killed processes: we have the lock
            remove(left)
        partial = cache / f"{digest}.{uuid4().hex}.partial"
        try:
            _download_verified(place, digest, partial)
            rename(partial, here)
        finally:
            remove(partial)
    return here


def download(place: str, manifest: Manifest, here: Path) -> None:
    """The files that a manifest at a place names, its record's, and last the manifest. They are not yet checked.
    Raises ArtifactError, StorageError."""
    known = _sizes(place, manifest)
    wanted = {name: known[name] for name in known if name in manifest.files or name.startswith(f"{RECORD}/")}
    make_folder(here)
    try:
        storage.get(place, wanted, here)
        text = storage.read(f"{place}/{MANIFEST}").decode()
    except FileNotFoundError as error:  # removed since
        raise ArtifactError(f"{place}: {error}. {AGAIN}") from error
    sync_tree(here)
    write_text(here / MANIFEST, text)


def _download_verified(place: str, digest: str, here: Path) -> None:
    for last in (False, True):
        manifest = _expected(place, digest)
        download(place, manifest, here)
        try:
            verify(here, digest)
        except ArtifactError as error:
            remove(here)
            if last:
                disbelieve(place)
                raise ArtifactError(
                    f"{manifest.kind} {digest[:12]} at {place} is damaged: {error} Its manifest is now {DAMAGED}, so "
                    f"that nobody relies on it. {AGAIN}"
                ) from error
        else:
            return


def disbelieve(place: str) -> None:
    """From now on what is at a place is not complete; its files stay, for a person to look at. Raises StorageError."""
    storage.write(f"{place}/{DAMAGED}", storage.read(f"{place}/{MANIFEST}"))
    storage.delete(place, [MANIFEST])


def _expected(place: str, digest: str) -> Manifest:
    manifest = manifest_at(place)
    if manifest.digest != digest:
        raise ArtifactError(
            f"{place}: {manifest.kind} {manifest.digest[:12]} is there, and {digest[:12]} was expected. {AGAIN}"
        )
    return manifest


def _sizes(place: str, manifest: Manifest) -> dict[str, int]:
    """Of all files that are at a place. Raises ArtifactError when one of the manifest's is not there as a whole."""
    known = storage.sizes(place)
    if missing := _missing(manifest, known):
        name = f"{manifest.kind} {manifest.digest[:12]} at {place}"
        raise ArtifactError(f"{name}: {', '.join(missing[:3])}: missing or cut off. {AGAIN}")
    return known


def _missing(manifest: Manifest, known: dict[str, int]) -> list[str]:
    """The files that are not there in their sizes."""
    return [name for name, entry in sorted(manifest.files.items()) if known.get(name) != entry.size]
