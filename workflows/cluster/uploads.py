"""Upload a recipe's small local files for a run on a cluster.

The files of each path are packed into one archive and uploaded through signed URLs, as Flyte uploads the code, so no
credentials are needed here. The recipe then has the archive's address with its digest. Only the digest enters cache
keys: the same files from another folder, or uploaded twice, are the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from baton.infra.progress import say
from baton.infra.storage.address import DIGEST, File, pack
from baton.infra.storage.buckets import is_bucket
from baton.infra.text import size
from baton.tasks.core.spec import Problem
from baton.tasks.evaluate.spec import EvaluateSpec
from baton.workflows.checks.run_context import RunContext
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.override import replaced

R = TypeVar("R", bound=Recipe)

LARGEST_BYTES = 100_000_000  # of all files under one path
INNER = ("source", "huggingface")  # the part of a corpus or a set of rows that names files, if any


@dataclass(frozen=True)
class LocalPath:
    """A path in a recipe, and the local files that it names."""

    field: str  # corpus.source.path
    path: str
    files: list[File]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def local_paths(context: RunContext, shared: str) -> list[LocalPath]:
    """The recipe's paths to local files, except those in the folder that the cluster's pods share."""
    specs: dict[str, Any] = {}
    for path, spec in context.stages().items():
        if named := getattr(spec, "sources", None):
            specs |= {f"{path}.sources.{name}.": source for name, source in named.items()}
            continue
        inner = next((name for name in INNER if getattr(spec, name, None)), None)
        specs |= {f"{path}.{inner}.": getattr(spec, inner)} if inner else {f"{path}.": spec}
    return [*_paths(specs, shared), *_curation_files(context, shared), *_task_files(context, shared)]


def _paths(specs: dict[str, Any], shared: str) -> Iterator[LocalPath]:
    for prefix, spec in specs.items():
        for field in ("path", "name", "existing", "model"):
            path = getattr(spec, field, None)
            if not isinstance(path, str) or not hasattr(spec, "local_files"):
                continue
            if not _is_below(path, shared) and (files := spec.local_files()):
                yield LocalPath(prefix + field, path, files)


def _curation_files(context: RunContext, shared: str) -> Iterator[LocalPath]:
    """Yield what the steps of a curation read: classifiers, and items of an evaluation."""
    for path, spec in context.stages().items():
        for number, step in enumerate(getattr(spec, "curate", ())):
            for field, source in step.sources().items():
                if not _is_below(source.path, shared) and (files := source.local_files()):
                    yield LocalPath(f"{path}.curate.{number}.{field}", source.path, files)


def _task_files(context: RunContext, shared: str) -> Iterator[LocalPath]:
    """Yield what lm-eval's tasks read, except the texts that are in the spec."""
    spec: EvaluateSpec | None = context.specs.get("evaluate")
    for name, evaluator in spec.evaluators().items() if spec else ():
        pinned = evaluator.pinned()
        if pinned.task_place and not _is_below(pinned.task_place, shared) and (files := pinned.local_files()):
            yield LocalPath(f"evaluate.{name}.task_place", pinned.task_place, files)


def _is_below(path: str, shared: str) -> bool:
    return bool(shared) and not is_bucket(shared) and Path(path).is_relative_to(shared)


def too_large(paths: list[LocalPath], shared: str) -> list[Problem]:
    """A problem for each path whose files are too large to upload."""
    folder = shared if shared and not is_bucket(shared) else "/shared"
    below = f"use a path in a folder that all pods mount (BATON_STORAGE={folder})"
    return [
        Problem(
            local.field,
            local.path,
            f"at most {size(LARGEST_BYTES)} are uploaded with a run, and these are {size(local.bytes)}. Pods can't "
            f"read this machine's files: put them into a bucket and use its address (s3://…), or {below}",
        )
        for local in paths
        if local.bytes > LARGEST_BYTES
    ]


def upload(recipe: R, paths: list[LocalPath], run: Any) -> R:
    """Upload the files of `paths`, and return the recipe with their addresses. `run`: flytekit's RunLevelParams."""
    for local in paths:
        with TemporaryDirectory() as folder:
            archive = Path(folder, "files.tar")
            digest = pack(local.files, archive)
            _, address = run.remote_instance().upload_file(archive, run.project, run.domain)
        say(f"{local.field}: {len(local.files)} files, {size(local.bytes)}, uploaded for the run: {address}")
        recipe = replaced(recipe, local.field.split("."), f"{address}{DIGEST}{digest}")
    return recipe
