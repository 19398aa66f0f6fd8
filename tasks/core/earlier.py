"""Find results of versions in which a job's key had the digests of its inputs, but not their facts, and the text of
its functions.

If a new version seals an input again, its identity includes the facts, so that jobs with this input have other folders.
A result in an earlier folder still counts if the facts of its inputs equal those of the job's inputs. This module can
be removed when no home or storage from before 2026-12 is in use.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from baton.infra.paths import located
from baton.infra.process.launch import is_finished
from baton.tasks.core.manifest import ArtifactError, Manifest
from baton.tasks.core.offsite import Offsite, offsite
from baton.tasks.core.stored import manifest_at


def has_result(job_dir: Path) -> bool:
    """Return whether the job in a folder is finished. Raises StorageError."""
    remote = offsite(job_dir)
    return remote.result() is not None if remote else is_finished(job_dir)


def has_result_of(job_dir: Path, digests: Mapping[str, str], given: Callable[[str], Manifest]) -> bool:
    """Return whether the job in a folder of an earlier version is finished, and had inputs with these digests and with
    the facts of the job's inputs, whose manifests `given` returns by name. Raises StorageError."""
    remote = offsite(job_dir)
    places = _stored_places(remote, digests) if remote else _places(job_dir)
    try:
        return places.keys() == digests.keys() and all(
            _is_same(manifest_at(place), given(name)) for name, place in places.items()
        )
    except ArtifactError:  # an input is gone, so that its facts are not known
        return False


def _places(job_dir: Path) -> dict[str, str]:
    """Return the places of a finished job's inputs; empty if it is not finished."""
    if not is_finished(job_dir):
        return {}
    entries = json.loads((job_dir / "spec.json").read_text())["inputs"]
    return {name: located(entry.get("origin") or entry["path"] or entry["place"]) for name, entry in entries.items()}


def _stored_places(remote: Offsite, digests: Mapping[str, str]) -> dict[str, str]:
    if not remote.result():
        return {}
    return {name: f"{remote.storage}/artifacts/{digest}" for name, digest in digests.items()}


def _is_same(old: Manifest, new: Manifest) -> bool:
    return (old.kind, old.digest, old.fields) == (new.kind, new.digest, new.fields)
