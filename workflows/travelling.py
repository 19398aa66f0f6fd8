"""What of this machine travels with a run to a cluster: the files that its recipe names by a path, if they are small,
and the source of the functions and evaluation tasks that it names.

Each path's files are packed into one archive and uploaded as Flyte uploads the code, through signed addresses, so no
credentials are needed here. The recipe then names the archive's address with its digest, which alone is in cache keys:
the same files from another place, or sent twice, are the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from infra.placement.address import DIGEST, File, pack
from infra.placement.storage import is_bucket
from infra.progress import say
from infra.text import size
from tasks.evaluate.spec import EvaluatorSpec
from tasks.functions import Function
from tasks.spec import Problem, Spec
from workflows.given import Given
from workflows.parts import replaced
from workflows.recipe import Recipe

R = TypeVar("R", bound=Recipe)

LARGEST_BYTES = 100_000_000  # of the files that one path names
INNER = ("source", "huggingface")  # of a corpus and of a set of rows: the part that names files, if it has one


@dataclass(frozen=True)
class Named:
    """A path in a recipe, and the files of this machine that it names."""

    field: str  # corpus.source.path
    path: str
    files: list[File]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def named_here(given: Given, shared: str) -> list[Named]:
    """The paths that name files of this machine, but for those in a folder that the cluster's pods `share`."""
    specs: dict[str, Any] = {}
    for path, spec in given.stages().items():
        inner = next((name for name in INNER if getattr(spec, name, None)), None)
        specs |= {f"{path}.{inner}.": getattr(spec, inner)} if inner else {f"{path}.": spec}
    return list(_named(specs, shared))


def _named(specs: dict[str, Any], shared: str) -> Iterator[Named]:
    for prefix, spec in specs.items():
        for field in ("path", "name", "existing", "model"):
            path = getattr(spec, field, None)
            if not isinstance(path, str) or not hasattr(spec, "local_files"):
                continue
            if not _is_below(path, shared) and (files := spec.local_files()):
                yield Named(prefix + field, path, files)


def _is_below(path: str, shared: str) -> bool:
    return bool(shared) and not is_bucket(shared) and Path(path).is_relative_to(shared)


def too_large(named: list[Named], shared: str) -> list[Problem]:
    """Those that do not travel."""
    folder = shared if shared and not is_bucket(shared) else "/shared"
    below = f"a path below a folder that all pods have (BATON_STORAGE={folder})"
    return [
        Problem(
            each.field,
            each.path,
            f"at most {size(LARGEST_BYTES)} travel with a run, and these are {size(each.bytes)}; pods do not see this "
            f"machine's files: put them into a bucket and give their address (s3://…), or give {below}",
        )
        for each in named
        if each.bytes > LARGEST_BYTES
    ]


def with_sources(part: Any) -> Any:
    """A recipe, or a part of one, with the source of its functions and of its evaluation tasks' files. All else is left
    for the pods to look at, which may have credentials that this machine has not."""
    if isinstance(part, Function | EvaluatorSpec):
        return part.as_found()
    if isinstance(part, Spec):
        found = {name: with_sources(value) for name, value in part}
        return part.model_copy(update={name: each for name, each in found.items() if each != getattr(part, name)})
    if isinstance(part, dict):
        return {name: with_sources(each) for name, each in part.items()}
    return [with_sources(each) for each in part] if isinstance(part, list) else part


def sent(recipe: R, named: list[Named], run: Any) -> R:
    """The recipe with the addresses at which pods find what was named here, uploaded. `run`: flytekit's
    RunLevelParams."""
    for each in named:
        with TemporaryDirectory() as folder:
            archive = Path(folder, "files.tar")
            digest = pack(each.files, archive)
            _, address = run.remote_instance().upload_file(archive, run.project, run.domain)
        say(f"{each.field}: {len(each.files)} files, {size(each.bytes)}, travel with the run: {address}")
        recipe = replaced(recipe, each.field.split("."), f"{address}{DIGEST}{digest}")
    return recipe
