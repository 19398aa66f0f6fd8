"""Why a stage runs that has run before: the differences from its nearest earlier result in Baton's home."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from baton.infra.paths import located
from baton.infra.text import shown
from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.spool import FINISHED, RecordDamaged, executions, read_stage, stage_folders
from baton.tasks.core.spec import Spec, StageSpec
from baton.tasks.user_code.changes import change
from baton.tasks.user_code.functions import Function
from baton.workflows.plan.dry_run import PlannedStage

NEWEST = 30  # executions that are looked at
MOST = 3  # differences that are named
LONGEST = 60  # characters of a value
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b")


def why(step: PlannedStage, steps: Sequence[PlannedStage], jobs: Mapping[str, Sequence[Path]]) -> str:
    """Return why a stage runs although it has run before: the fields, files and functions that differ, or the inputs.
    Empty if it is cached, or has not run in this home. `steps`: those of the DAG. `jobs`: see `finished_jobs`."""
    if step.cached or not step.is_cacheable:
        return ""
    if step.is_recomputed:
        return "its files were removed"
    before = [_Earlier(step, job) for job in jobs.get(step.name, ())]
    known = [each for each in before if each.spec is not None]
    if not known:
        return ""
    found = min((each.differences() for each in known), key=len)
    if not found:
        found = [f"{each.name} runs again" for each in steps if each.name in step.inputs and not each.cached]
    if not found:
        inputs = [each for each in steps if each.name in step.inputs and each.artifact]
        another = min(([each.name for each in inputs if not earlier.has(each)] for earlier in known), key=len)
        found = [f"another result of {name}" for name in another]
    more = f"; and {len(found) - MOST} more" * (len(found) > MOST)
    return "; ".join(found[:MOST]) + more or "its result was removed, or another version of Baton made it"


class _Earlier:
    """A finished job of a stage."""

    def __init__(self, step: PlannedStage, job: Path) -> None:
        self._step = step
        self.spec: StageSpec | None = None  # None if it cannot be read
        self._inputs: dict[str, Any] = {}
        try:
            request = json.loads((job / "spec.json").read_text())
            self.spec = type(step.spec).model_validate_json(json.dumps(request["spec"]))
            self._inputs = request["inputs"]
        except (OSError, ValueError, KeyError):  # pydantic's errors are ValueErrors
            return

    def differences(self) -> list[str]:
        assert self.spec is not None
        return [*_differences("", self.spec, self._step.spec)]

    def has(self, step: PlannedStage) -> bool:
        """Return whether the stage's artifact was among the inputs."""
        keys = {each.get("identity") or each["digest"] for each in self._inputs.values()}
        return step.artifact is not None and step.artifact.key in keys


def finished_jobs() -> dict[str, list[Path]]:
    """Return the folders of the finished jobs of the newest executions, by the title of their stages, the newest
    first."""
    jobs: dict[str, dict[Path, None]] = {}
    for execution in islice(reversed(executions()), NEWEST):
        for folder in stage_folders(execution):
            try:
                run = read_stage(folder)
            except RecordDamaged:
                continue
            if run.status == FINISHED and run.job_dir:
                jobs.setdefault(run.title, {})[Path(located(run.job_dir))] = None
    return {title: [*folders] for title, folders in jobs.items()}


def _differences(path: str, old: Any, new: Any) -> Iterator[str]:
    """Yield the differences between two values that are in the identity, by their paths."""
    if isinstance(old, Spec) and isinstance(new, Spec) and type(old) is type(new):
        if old.identity() == new.identity():
            return
        if isinstance(old, Function) and isinstance(new, Function):
            yield f"{path}: {change(old, new)}"
            return
        for name in sorted(new.identity() | old.identity(), key="state".__eq__):  # what changed the state comes first
            before, after = getattr(old, name, None), getattr(new, name, None)
            yield from _differences(f"{path}.{name}".removeprefix("."), before, after)
    elif isinstance(old, dict | list) and type(old) is type(new):
        items, others = (dict(each if isinstance(each, dict) else enumerate(each)) for each in (old, new))
        for name in {**others, **items}:
            inner = f"{path}.{name}".removeprefix(".")
            if name not in items or name not in others:
                yield f"{inner} is {'new' if name in others else 'left out'}"
            else:
                yield from _differences(inner, items[name], others[name])
    elif old != new:
        yield f"{path}: {_text(new)}, before {_text(old)}"


def _text(value: Any) -> str:
    plain = value.identity() if isinstance(value, Spec) else value
    text = _DIGEST.sub(r"\1…", json.dumps(plain, default=str, ensure_ascii=False))
    return shown(redact_text(text), LONGEST)
