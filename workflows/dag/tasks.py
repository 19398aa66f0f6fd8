"""The Flyte tasks of a DAG's calls, and their arguments."""

from collections.abc import Iterator, Mapping
from typing import Any

from baton.infra.flyte.options import OPTIONS, Options
from baton.tasks.core.packages import modules
from baton.tasks.stage_task import StageTask
from baton.workflows.dag.call import Call, Input


def _tasks() -> Iterator[StageTask]:
    """The stages' tasks: the variables of each package's `task.py`, and those in its mappings."""
    for module in modules("task"):
        for value in vars(module).values():
            several = [*value.values()] if isinstance(value, dict) else [value]
            yield from (task for task in several if isinstance(task, StageTask))


TASKS: dict[str, StageTask] = {task.name.rpartition(".")[2]: task for task in _tasks()}


def arguments(
    call: Call,
    outputs: Mapping[str, Any],
    upstream: Mapping[str, list[str]] | None = None,
    recompute: bool = False,
) -> dict[str, Any]:
    """The arguments of the call's Flyte task. `outputs`: what the calls before it returned, by title. `upstream`,
    `recompute`: see `Options`."""
    inputs = {name: _filled(value, outputs) for name, value in call.inputs.items()}
    options = Options(title=call.title, upstream=upstream or {}, recompute=recompute)
    return {"spec": call.spec, OPTIONS: options, **inputs}


def _filled(value: Input, outputs: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: outputs[title] for name, title in value.items()}
    return outputs[value] if isinstance(value, str) else [outputs[title] for title in value]
