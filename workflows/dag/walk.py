"""Run a DAG's calls as Flyte tasks, or compile them into its nodes."""

from collections.abc import Iterator, Mapping
from typing import Any

from tasks.core.called import Called
from tasks.core.packages import modules
from tasks.stage_task import StageTask
from workflows.dag.call import Call, Calls, Input


def _tasks() -> Iterator[StageTask]:
    """The stages' tasks: the variables of each package's `task.py`, and those in its mappings."""
    for module in modules("task"):
        for value in vars(module).values():
            several = [*value.values()] if isinstance(value, dict) else [value]
            yield from (task for task in several if isinstance(task, StageTask))


TASKS: dict[str, StageTask] = {task.name.rpartition(".")[2]: task for task in _tasks()}


def walk(dag: Calls, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The artifacts, or while Flyte compiles the promises of them, that the calls make, by title. `given`: those that
    exist before."""
    outputs = {**(given or {})}
    upstream: dict[str, dict[str, list[str]]] = {}  # `Called.upstream` of each call, by title
    for call in dag:
        before = sorted((call.titles() | {*call.after}) & upstream.keys())
        upstream[call.title] = {call.title: before}
        for title in before:
            upstream[call.title] |= upstream[title]
        output = TASKS[call.stage](**arguments(call, outputs, upstream[call.title]))
        for title in call.after:
            outputs[title] >> output
        outputs[call.title] = output
    return outputs


def arguments(
    call: Call, outputs: Mapping[str, Any], upstream: Mapping[str, list[str]] | None = None
) -> dict[str, Any]:
    """The arguments of the call's Flyte task. `upstream`: see `Called`."""
    inputs = {name: _filled(value, outputs) for name, value in call.inputs.items()}
    return {"spec": call.spec, "how": Called(call.title, upstream or {}).how(), **inputs}


def _filled(value: Input, outputs: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: outputs[title] for name, title in value.items()}
    return outputs[value] if isinstance(value, str) else [outputs[title] for title in value]
