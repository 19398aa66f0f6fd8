"""The table of methods, and its consequences."""

from pkgutil import resolve_name

import pytest
from flytekit.core.python_auto_container import default_task_resolver

from baton.tasks.posttrain.methods import METHODS
from baton.workflows.dag.post_training import Tuning, steps
from baton.workflows.dag.tasks import TASKS
from tests.source import ROOT, files, module_name


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_a_trainer_and_a_task_that_a_pod_finds(name: str) -> None:
    assert callable(resolve_name(METHODS[name].method.trainer))
    task = TASKS[name]
    module, attribute = default_task_resolver.loader_args(None, task)[1::2]  # type: ignore[arg-type] # not used
    assert (module, attribute) == ("baton.tasks.posttrain.task", name)
    assert resolve_name(f"{module}:{attribute}") is task


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_a_field_of_post_training(name: str) -> None:
    (step,) = steps([Tuning.model_validate({name: {"data": "rows"}})])
    assert (step.path, step.name, type(step.spec)) == (f"post_training.0.{name}", name, METHODS[name])


def test_no_module_but_the_table_the_hooks_and_the_gpu_check_imports_a_method() -> None:
    outside = {
        module_name(path)
        for path in files("images", "infra", "tasks", "workflows")
        if "methods" not in path.relative_to(ROOT).parts and "baton.tasks.posttrain.methods." in path.read_text()
    }
    assert outside == {"tasks.posttrain.trl_hooks.grpo", "workflows.gpu_check.tuning"}
