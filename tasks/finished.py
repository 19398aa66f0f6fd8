"""Find the result that an earlier run of the same job has left, on this machine or in storage."""

import shutil
from pathlib import Path

from baton.infra.flyte.hooks import add_deck, ignored_outputs
from baton.infra.process.launch import is_finished
from baton.infra.process.removal_lock import without_removal
from baton.infra.process.torchrun_env import is_first_node, this_node
from baton.infra.progress import say
from baton.infra.storage.durable import remove
from baton.infra.tracking.execution import execution_id
from baton.infra.tracking.machine import lineage_page
from baton.infra.tracking.record import note_cached
from baton.tasks.artifacts import shown
from baton.tasks.core.inputs import views_of
from baton.tasks.core.manifest import MANIFEST, ArtifactError, Manifest, read_manifest, verify
from baton.tasks.core.removed import was_removed
from baton.tasks.stage_job import NODE_0, A, StageJob, produced


def finished(job: StageJob[A]) -> A | None:
    """Return the artifact of a finished job, recorded as cached. None: the job is to be executed, because it is not
    finished or its engine repeats; its newest checkpoints in storage are then on this machine. On a node that is not
    the first, a finished job raises flytekit's exception for ignored outputs. Raises StorageError, NotPlaced."""
    with without_removal():
        return _finished(job)


def _finished(job: StageJob[A]) -> A | None:
    output = job.folder / "output"
    _drop_damaged(output)
    if job.remote:
        is_first = is_first_node()
        found = job.remote.resume() if is_first else job.remote.result()
    else:
        is_first = this_node(job.launch.nodes, job.launch.helpers).rank == 0
        found = (str(output), read_manifest(output)) if is_finished(job.folder) else None
    if found is None or job.engine.repeats:
        return None
    if not is_first:
        raise ignored_outputs(NODE_0)
    if not job.remote:
        shutil.rmtree(views_of(job.folder), ignore_errors=True)
    return _reused(job, *found)


def _drop_damaged(output: Path) -> None:
    """Remove a finished job's output if its files do not match its manifest: it is not reused then."""
    if not (output / MANIFEST).exists():
        return
    try:
        verify(output)
    except ArtifactError as error:
        reason = f"`baton gc` removed the files of {output}" if was_removed(str(output)) else error
        say(f"{reason}\nRecomputing it.")
        remove(output)


def _reused(job: StageJob[A], place: str, manifest: Manifest) -> A:
    """The artifact that another run of the same job has made, recorded as cached."""
    kind, facts = job.artifact_type.kind, manifest.fields
    note_cached(
        job.title, kind, manifest.digest, facts,
        spec=job.spec_json(), inputs=job.parents, job_dir=None if job.remote else job.folder, shown=shown(kind, facts),
    )  # fmt: skip
    produced.add(manifest.digest)
    say(f"✓ {job.title:<14} found in {place}")
    show(job.title, f"<p>{kind} {manifest.digest} was found in {place}</p>")
    return job.artifact_type.from_place(place)


def show(title: str, page: str) -> None:
    """Add the stage's deck to its page in Flyte's console."""
    lineage = lineage_page(execution_id())
    link = f'<p><a href="{lineage}">Lineage of this execution</a></p>' if lineage else ""
    add_deck(title, link + page)
