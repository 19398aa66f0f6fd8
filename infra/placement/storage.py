"""Directories in the storage that a placed stage and its sender both reach: a folder, or a bucket through fsspec."""

import os
from pathlib import Path
from typing import Any

from infra.durable import make_folder, rename, sync_tree
from infra.home import baton_home

BUCKET = "BATON_BUCKET"  # on a job's machine: the bucket that Baton's home is
COMPLETE = "manifest.json"  # an artifact's last file


def is_bucket(place: str) -> bool:
    """Whether a place is an address (s3://…, gs://…) and not a folder."""
    return "://" in place


def storage_of(named: str | None) -> str:
    """Where the files of a placed stage are kept."""
    place = named or os.environ.get("BATON_STORAGE") or str(baton_home())
    return place.rstrip("/") if is_bucket(place) else str(Path(place).expanduser().absolute())


def address_of(directory: str) -> str:
    """Where others find a directory of Baton's home: on a job's machine that is a bucket, if one is mounted there."""
    bucket = os.environ.get(BUCKET)
    return directory.replace(str(baton_home()), bucket, 1) if bucket else directory


def send(directory: str, digest: str, storage: str) -> str:
    """Where in the storage a complete directory is, put there first if it is not."""
    if directory.startswith(f"{storage}/"):
        return directory
    there = f"{storage}/artifacts/{digest}"
    access = _access()
    if not access.exists(f"{there}/{COMPLETE}"):
        for path in sorted(Path(directory).iterdir(), key=lambda path: path.name == COMPLETE):  # that one last
            if path.name == COMPLETE and not is_bucket(there):
                sync_tree(Path(there))
            access.put_data(f"{path}/" if path.is_dir() else str(path), f"{there}/{path.name}", path.is_dir())
        if not is_bucket(there):
            sync_tree(Path(there))
    return there


def fetch(directory: str, digest: str) -> Path:
    """A complete directory of a bucket, on this machine; once."""
    here = baton_home() / "artifacts" / digest
    if not (here / COMPLETE).exists():
        make_folder(here.parent)
        partial = here.with_name(f"{digest}.{os.getpid()}.partial")
        _access().get_data(f"{directory}/", str(partial), is_multipart=True)
        sync_tree(partial)
        rename(partial, here)
    return here


def fetch_one(file: str, here: Path) -> None:
    """One file of a bucket, to a path on this machine."""
    _access().get_data(file, str(here), is_multipart=False)


def _access() -> Any:
    """Flyte's access to files, by fsspec; imported when it is needed, since recipes are checked without it."""
    from flytekit import FlyteContextManager

    return FlyteContextManager.current_context().file_access
