"""Run a DAG's calls as Flyte tasks, or compile them into its nodes."""

from collections.abc import Mapping
from typing import Any

from baton.infra.flyte.task import is_compiling
from baton.infra.process.removal_lock import without_removal
from baton.infra.tracking.execution import note_used
from baton.tasks.artifacts import Artifact
from baton.workflows.dag.call import Calls
from baton.workflows.dag.recompute import cached_artifacts, recomputed
from baton.workflows.dag.tasks import TASKS, arguments


def walk(dag: Calls, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The artifacts, or while Flyte compiles the promises of them, that the calls make, by title. `given`: those that
    exist before.

    On one machine, the stages that are recomputed are chosen before the first call, and again after each stage that
    ran, when the cache keys of the stages after it are known. A cluster's catalog cannot be asked beforehand."""
    outputs = {**(given or {})}
    upstream: dict[str, dict[str, list[str]]] = {}  # `Options.upstream` of each call, by title
    cached: dict[str, Artifact] = {}  # by title
    to_recompute: set[str] | None = set() if is_compiling() else None  # titles; None: not known
    for number, call in enumerate(dag):
        before = sorted((call.titles() | {*call.after}) & upstream.keys())
        upstream[call.title] = {call.title: before}
        for title in before:
            upstream[call.title] |= upstream[title]
        if to_recompute is None:
            rest = dag[number:]
            cached = {title: cached[title] for title in cached.keys() & outputs.keys()}
            with without_removal():
                cached |= cached_artifacts(rest, outputs)
                to_recompute = recomputed(rest, cached)
                note_used(artifact.digest for artifact in cached.values())
        output = TASKS[call.stage](**arguments(call, outputs, upstream[call.title], call.title in to_recompute))
        for title in call.after:
            outputs[title] >> output
        outputs[call.title] = output
        if not is_compiling() and (call.title in to_recompute or call.title not in cached):
            to_recompute = None
    return outputs
