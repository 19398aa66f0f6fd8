"""An artifact's folder as one download: a tar file that is written while it is sent.

Its size is known before, since a tar file is headers and contents in blocks of 512 bytes. The files are those of the
manifest as they are, without the record, from this machine or from the storage that BATON_STORAGE names. Each content
is compared with its digest; at the first difference the connection is cut, so that no client mistakes the file for a
complete one.
"""

import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from baton.infra.lineage import files
from baton.infra.lineage.facts import json_or
from baton.infra.storage import buckets as storage
from baton.infra.storage.address import File
from baton.infra.storage.buckets import StorageError, storage_of

CHUNK_BYTES = 1 << 20
BLOCK = tarfile.BLOCKSIZE
END = bytes(2 * BLOCK)
LONGEST_NAME = 80
DIGEST = re.compile(r"[0-9a-f]{64}")
MANIFEST = "manifest.json"


class Damaged(Exception):
    """Raised if a file is not as in the manifest, while it is sent."""


@dataclass(frozen=True)
class Member:
    file: File
    header: bytes
    blake3: str

    @property
    def size(self) -> int:
        """Return its bytes in the tar file."""
        return len(self.header) + -(-self.file.size // BLOCK) * BLOCK


@dataclass(frozen=True)
class Archive:
    name: str
    members: list[Member]

    @property
    def size(self) -> int:
        return sum(member.size for member in self.members) + len(END)

    def chunks(self) -> Iterator[bytes]:
        """Yield the tar file's content. Raises Damaged, OSError, StorageError."""
        for member in self.members:
            yield member.header
            hasher, left = blake3(), member.file.size
            with member.file.open() as stream:
                while left and (chunk := stream.read(min(left, CHUNK_BYTES))):
                    left -= len(chunk)
                    hasher.update(chunk)
                    yield chunk
            if left or hasher.hexdigest() != member.blake3:
                raise Damaged(f"{member.file.place}: is not as in the manifest")
            yield bytes(-member.file.size % BLOCK)
        yield END


def has_storage() -> bool:
    """Return whether artifacts that are not in the home may be in another storage."""
    return bool(os.environ.get("BATON_STORAGE"))


def archive(title: str, digest: str, job: str | None) -> Archive | None:
    """Return the archive of an artifact, or None if its files are not at hand. Raises StorageError."""
    name = f"{safe(title)}-{safe(digest)[:12]}"
    found = files.look(job, digest)
    if found.state == "here":
        sealed = {each["name"]: str(each["blake3"]) for each in found.files}
        local = {each: path for each, path in files.paths_of(found).items() if path is not None}
        places = {each: File.local(path, path.parent) for each, path in local.items()}
    else:
        places, sealed = _stored(digest)
    if not sealed or places.keys() != sealed.keys() or not all(map(_is_inside, sealed)):
        return None
    return Archive(
        name=f"{name}.tar",
        members=[
            Member(file, _header(f"{name}/{each}", file.size), sealed[each]) for each, file in sorted(places.items())
        ],
    )


def safe(name: str) -> str:
    """Return a name as that of a file, in any shell and on any file system."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:LONGEST_NAME].strip("-.") or "artifact"


def _stored(digest: str) -> tuple[dict[str, File], dict[str, str]]:
    """Return the files of an artifact in storage and their digests, by name; none if it has no such artifact."""
    if not has_storage() or not DIGEST.fullmatch(digest):
        return {}, {}
    root = f"{storage_of(None)}/artifacts"
    file_system = storage.file_system(root)
    found = storage.with_retries(lambda: file_system.glob(f"{root}/{digest}*/{MANIFEST}"), root)
    if not found:
        return {}, {}
    place = f"{root}/{Path(found[0]).parent.name}"
    manifest: Any = json_or(storage.read(f"{place}/{MANIFEST}").decode(errors="replace"))
    if not isinstance(manifest, dict) or manifest.get("digest") != digest:
        return {}, {}
    entries = {str(name): entry for name, entry in manifest["files"].items()}
    sizes = storage.sizes(place)
    if any(sizes.get(name) != entry["size"] for name, entry in entries.items()):
        raise StorageError(f"{place}: files are missing or truncated", curable=False)
    listed = {name: File(f"{place}/{name}", name, sizes[name], "") for name in entries}
    return listed, {name: str(entry["blake3"]) for name, entry in entries.items()}


def _is_inside(name: str) -> bool:
    """Return whether a name stays in the folder into which the tar file is unpacked."""
    return bool(name) and not name.startswith("/") and ".." not in name.split("/")


def _header(name: str, size: int) -> bytes:
    about = tarfile.TarInfo(name)
    about.size = size
    return about.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
