"""The files and facts of an input that a job is given, and the key that stands for them.

The rule, for the stages of Baton and for those of users: a result depends on nothing that is not in its key. A job
therefore gets each input as a *view*: a folder with links to the files of the content, and a manifest with their
digests and the facts. Both are in the input's identity, of which keys are made. What documents the run that made the
input (times, speeds, layout, machine, spec) is not in the view. A stage that needs some of it names it in the `files`
of its `Reads` (tasks/stage_job.py):

    record/<name>    is in the view and in the key
    record/*         is in the view alone, for stages that no cache keeps, such as the report
    manifest.json    is the complete manifest: its parents are in the key too, its spec, title and versions are for
                     what the stage displays

or in `checks`, which are in the view alone: an engine compares its own computation with them, a difference ends the
stage, and nothing of them enters a result.

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

from infra.storage.buckets import is_bucket
from infra.storage.durable import NO_LINK, replacement
from tasks.core.manifest import MANIFEST, RECORD, Manifest, file_digest, json_key, matches, read_manifest
from tasks.core.stored import fetch, manifest_at

T = TypeVar("T")

FETCHES = 8  # inputs at a time
FOLDER = "inputs"  # of a job's views, in its folder


def input_key(identity: str, place: str, patterns: Sequence[str]) -> str:
    """The key of an input of which a job is given the files that match the patterns. Raises ArtifactError,
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
    """The folder of a job's views, which is deleted when the job is finished."""
    return job_dir / FOLDER


def view(artifact: Path, folder: Path, patterns: Sequence[str]) -> Path:
    """Make or update the view of an artifact in `folder`, with the files that match the patterns. A process that reads
    the same view meanwhile is not disturbed. Raises ArtifactError."""
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
    """The part of a manifest that is in the identity, as JSON."""
    visible = Manifest(manifest.kind, manifest.digest, manifest.files, manifest.facts, identity=manifest.identity)
    return json.dumps(asdict(visible), indent=1, sort_keys=True)


def _link(file: Path, link: Path) -> None:
    """Link a file, unless it is missing or linked already: by a hard link, which an archive takes as the file that it
    is, or by a symbolic one to another disk or where another user's files cannot be linked."""
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
    """The results by name."""
    pool = ThreadPoolExecutor(FETCHES, thread_name_prefix="inputs")
    try:  # with a copy of the context, which has Flyte's access to storage
        pending = {name: pool.submit(copy_context().run, function, name) for name in names}
        return {name: future.result() for name, future in pending.items()}
    finally:
        pool.shutdown(cancel_futures=True)
