"""Select the files and facts of an input that a job gets, and derive the key that stands for them.

A result depends on the version of its engine, on the identity of its spec, and on the files and facts of its inputs,
and on nothing else. These are its key, in Flyte's caches and in the name of its job's folder. Where and how the stage
runs (paths, machines, layouts, retries) is in its task's other input, `options` (infra/flyte/options.py).

The rule holds for Baton's stages and for those of users, since a job gets each input as a *view*: a folder with links
to the files of the content, and a manifest with their digests and the facts. Records of the run that made the input
(times, speeds, layout, machine, spec) are not in the view. A stage that needs some of them names these in the `files`
of its `Reads` (tasks/stage_job.py):

    record/<name>    is in the view and in the key
    record/*         is only in the view, for stages that are not cached, such as the report
    manifest.json    is the complete manifest: its parents are also in the key; its spec, title and versions are only
                     for display

or in `checks`, which are only in the view: an engine compares its own computation with them, and a difference ends the
stage, so that they do not enter a result.

An artifact that was sealed before facts were in keys has its digest as its identity, so that the results that were made
from it are still found.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from baton.infra.storage.buckets import is_bucket
from baton.infra.storage.durable import NO_LINK, replacement
from baton.tasks.core.manifest import MANIFEST, RECORD, Manifest, file_digest, json_key, matches, read_manifest
from baton.tasks.core.stored import fetch, manifest_at

T = TypeVar("T")

FETCHES = 8  # inputs that are fetched at a time
FOLDER = "inputs"  # name of the folder of a job's views, in its folder


def input_key(identity: str, place: str, patterns: Sequence[str]) -> str:
    """Return the key of an input of which a job gets the files that match the patterns. Raises ArtifactError,
    StorageError."""
    recorded = [name for name in patterns if name.startswith(f"{RECORD}/") and "*" not in name]
    if not recorded and MANIFEST not in patterns:
        return identity
    manifest = manifest_at(place)
    if not manifest.identity:
        return identity
    more: list[object] = [manifest.parents] if MANIFEST in patterns else []
    if recorded:
        folder = fetch(place, manifest.digest, recorded) if is_bucket(place) else Path(place)
        more += [file_digest(folder / name) if (folder / name).exists() else None for name in recorded]
    return f"{identity}-{json_key(more)[:16]}"


def views_of(job_dir: Path) -> Path:
    """Return the folder of a job's views, which is deleted when the job is finished."""
    return job_dir / FOLDER


def view(artifact: Path, folder: Path, patterns: Sequence[str]) -> Path:
    """Make or update the view of an artifact in `folder`, with the files that match the patterns, without disturbing a
    process that is reading the same view. Raises ArtifactError."""
    manifest = read_manifest(artifact)
    recorded = [path.relative_to(artifact).as_posix() for path in (artifact / RECORD).rglob("*") if path.is_file()]
    names = {name for name in (*manifest.files, *recorded) if matches(name, patterns)}
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.rglob("*"):
        if not path.is_dir() and path.relative_to(folder).as_posix() not in {*names, MANIFEST}:
            path.unlink()
    for name in sorted(names):
        _link((artifact / name).absolute(), folder / name)
    text = (artifact / MANIFEST).read_text() if MANIFEST in patterns else _visible(manifest)
    if not (folder / MANIFEST).exists() or (folder / MANIFEST).read_text() != text:
        with replacement(folder / MANIFEST, synced=False) as partial:
            partial.write_text(text)
    return folder


def _visible(manifest: Manifest) -> str:
    """Return the part of a manifest that is in the identity, as JSON."""
    visible = Manifest(manifest.kind, manifest.digest, manifest.files, manifest.facts, identity=manifest.identity)
    return json.dumps(asdict(visible), indent=1, sort_keys=True)


def _link(file: Path, link: Path) -> None:
    """Link a file, unless it is missing or linked already. The link is a hard link, which an archive stores as a file,
    or a symbolic link to another disk or where another user's files cannot be linked."""
    if not file.exists():
        link.unlink(missing_ok=True)
        return
    if link.exists() and link.samefile(file):
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    with replacement(link, synced=False) as partial:
        try:
            os.link(file.resolve(), partial)
        except OSError as error:
            if error.errno not in NO_LINK:
                raise
            partial.symlink_to(file)


def side_by_side(function: Callable[[str], T], names: Iterable[str]) -> dict[str, T]:
    """Call a function for all names in parallel, and return the results by name."""
    pool = ThreadPoolExecutor(FETCHES, thread_name_prefix="inputs")
    try:  # each call gets a copy of the context, which has Flyte's access to storage
        pending = {name: pool.submit(copy_context().run, function, name) for name in names}
        return {name: future.result() for name, future in pending.items()}
    finally:
        pool.shutdown(cancel_futures=True)
