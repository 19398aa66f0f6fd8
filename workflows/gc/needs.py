"""Find out what a home's artifacts are needed for, from the records of its runs and from the model registry."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from baton.infra.errors import UserError
from baton.infra.paths import home_path
from baton.infra.tracking.set_aside import OUTCOME_TAG
from baton.infra.tracking.spool import (
    FINISHED,
    Execution,
    StageRun,
    executions,
    has_pushed_to,
    is_alive,
    read_execution,
    read_stage,
    read_used,
    stage_folders,
)
from baton.infra.tracking.sqlite_file import store_file
from baton.infra.tracking.store import tracking_uri
from baton.tasks.artifacts import kind_of
from baton.tasks.core.manifest import ArtifactError, read_manifest
from baton.tasks.models.find import model_names

FINDINGS = ("finding", "page")  # families of artifacts that are small and that reports and comparisons read
CHAMPIONS = ("champion", "previous")
ACCEPTED = ("promoted", "kept")  # outcomes of generations that continuous training builds on
PARTS = "baton.part."


@dataclass
class Needs:
    """The uses of artifacts, by digest, and of job folders, by name.

    `required`: the reason why an artifact stays in any case; `preferred`: why it stays unless it is chosen by its kind
    or its run."""

    used: dict[str, float] = field(default_factory=dict)  # time of the last use, seconds since the epoch
    makers: dict[str, set[str]] = field(default_factory=dict)  # ids of the executions that made it
    sources: set[str] = field(default_factory=set)  # digests of artifacts from which others were made
    required: dict[str, str] = field(default_factory=dict)
    preferred: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)  # name of a folder -> why a running execution needs it
    job_used: dict[str, float] = field(default_factory=dict)
    running: str = ""  # a running execution, in words


def needs() -> Needs:
    """Read the records of this home and the registry. Raises RecordDamaged, UserError."""
    found = Needs()
    newest: dict[str, tuple[Execution, list[StageRun]]] = {}
    for folder in executions():
        execution, stages = read_execution(folder), [read_stage(stage) for stage in stage_folders(folder)]
        for run in stages:
            _note(found, execution, run)
        if is_alive(folder):
            found.running = f"{execution.name} {execution.id} is running"
            _keep_all(found, stages, found.running)
            found.required |= dict.fromkeys(read_used(folder), found.running)
        elif named := _named(execution):
            _keep_outputs(found, stages, f"{execution.id} {named}")
        if execution.status == FINISHED:
            newest[execution.name] = execution, stages
    for name, (_, stages) in newest.items():
        _keep_outputs(found, [run for run in stages if _is_finding(run)], f"of the newest run of {name}")
    for name in model_names():
        with suppress(ArtifactError):  # a link that leads to none
            found.required[read_manifest(home_path() / "models" / name).digest] = f"is served by the name {name}"
    for digest, reason, is_required in _registered():
        (found.required if is_required else found.preferred).setdefault(digest, reason)
    return found


def _note(found: Needs, execution: Execution, run: StageRun) -> None:
    moment = run.ended or run.started
    digest = (run.output or {}).get("digest", "")
    for each in {digest, *run.inputs.values()} - {""}:
        found.used[each] = max(moment, found.used.get(each, 0.0))
    if run.job_dir:
        name = Path(run.job_dir).name
        found.job_used[name] = max(moment, found.job_used.get(name, 0.0))
    if digest and not run.cached:
        found.makers.setdefault(digest, set()).add(execution.id)
    if run.output and kind_of(run.output["kind"]).relation.has_content:
        found.sources |= {*run.inputs.values()} - {digest}


def _keep_all(found: Needs, stages: list[StageRun], reason: str) -> None:
    _keep_outputs(found, stages, reason)
    for run in stages:
        found.required |= dict.fromkeys(run.inputs.values(), reason)
        if run.job_dir:
            found.jobs[Path(run.job_dir).name] = reason


def _keep_outputs(found: Needs, stages: list[StageRun], reason: str) -> None:
    for run in stages:
        if run.output:
            found.required.setdefault(run.output["digest"], reason)


def _named(execution: Execution) -> str:
    """Return what a user has written about an execution, or "" if nothing."""
    if execution.note:
        return f"has the note {execution.note.splitlines()[0][:60]!r}"
    tags = sorted(name for name, value in execution.tags.items() if value)
    return f"has the tags {', '.join(tags)}"[:80] if tags else ""


def _is_finding(run: StageRun) -> bool:
    return run.output is not None and kind_of(run.output["kind"]).family in FINDINGS


def _registered() -> Iterator[tuple[str, str, bool]]:
    """Yield digests of artifacts that registered versions refer to, why each is needed, and whether it is required: by
    an alias, or by a generation, which later nights replay and which a rollback can restore. Raises UserError."""
    if (path := store_file(tracking_uri())) and not path.exists() and not has_pushed_to(""):
        return  # no run has sent anything anywhere, in a home that was moved either
    from mlflow import MlflowClient

    from baton.tasks.core.job import StageError
    from baton.tasks.publish.aliases import Version, all_versions
    from baton.tasks.publish.registry import ask

    def look(client: MlflowClient) -> list[tuple[Version, list[str]]]:
        found: list[tuple[Version, list[str]]] = []
        token: str | None = ""
        while token is not None:
            page = client.search_registered_models(page_token=token or None)
            for model in page:
                aliases = {alias: int(version) for alias, version in model.aliases.items()}
                found += [
                    (version, sorted(alias for alias, at in aliases.items() if at == version.version))
                    for version in all_versions(client, model.name)
                ]
            token = page.token or None
        return found

    try:
        registered = ask(look, patience_s=0)
    except StageError as error:
        raise UserError(f"{error}\nNothing is removed while the registry cannot be asked what it needs.") from error
    for version, aliases in registered:
        title = f"{version.name} version {version.version}"
        reason = f"{title} is {', '.join(aliases)}" if aliases else f"registered as {title}"
        is_generation = version.tags.get(OUTCOME_TAG) in ACCEPTED or not {*CHAMPIONS}.isdisjoint(aliases)
        for digest in {version.digest, version.content} - {""}:
            yield digest, reason, bool(aliases) or is_generation
        if is_generation:
            for tag, value in version.tags.items():
                if tag.startswith(PARTS):
                    yield value.partition(" ")[0], f"a generation of {title}", True
