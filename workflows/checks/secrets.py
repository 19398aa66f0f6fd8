"""Check that a recipe has no secret: it is stored as plain text with everything derived from it (spec.json, manifests).

A function reads a secret from an environment variable, which its `environment` names; a storage has its own
credentials.
"""

import os
from collections.abc import Iterator
from typing import Any

from baton.infra.pod_spec import secrets_of_all
from baton.infra.tracking.redact import HIDDEN, redact, redact_code
from baton.tasks.core.spec import Problem
from baton.tasks.data.curate_spec import CurateStep
from baton.tasks.data.source_spec import FunctionSource
from baton.tasks.rows.spec import RowsSpec
from baton.tasks.user_code.functions import Function
from baton.workflows.checks.parts import items, specs_in
from baton.workflows.checks.run_context import RunContext, runs_on_a_cluster

STORED = "a recipe is stored as plain text with everything derived from it"
NAMES = ("placement.secrets", "pod.secrets")  # fields with names of variables, not their values


def secret_values(context: RunContext) -> Iterator[Problem]:
    """The secrets in a recipe."""
    for path, value in _leaves(context.specs):
        name = path.rpartition(".")[2]
        if isinstance(value, Function):
            yield from _in_code(path, value)
        elif isinstance(value, str) and redact(value, name) != value and not path.endswith(".placement.setup"):
            yield Problem(path, HIDDEN, _fix(path, value))

    for number, stage in enumerate(context.specs.get("stages", ())):
        if named := stage.named():
            yield from _in_code(f"stages.{number}.stage", named)


def _fix(path: str, value: str) -> str:
    if ".arguments." in path:
        function = path.partition(".arguments.")[0]
        return (
            f"no secret: {STORED}. Set an environment variable, name it in {function}.environment: [NAME], and read "
            "os.environ in the function"
        )
    if "://" in value:
        return (
            f"an address without a user, a password or a signature: {STORED}. Give the storage its credentials by its "
            "environment variables (such as AWS_ACCESS_KEY_ID or AZURE_STORAGE_SAS_TOKEN) or its configuration file"
        )
    return f"no secret: {STORED}. Put it into an environment variable of the process that needs it"


def _in_code(path: str, function: Function) -> Iterator[Problem]:
    for file, text in function.sources().items():
        if redact_code(text) != text:
            yield Problem(
                path, HIDDEN, f"source without secrets: {STORED}, {file} too. Read an environment variable instead"
            )


def unset_variables(context: RunContext) -> Iterator[Problem]:
    """The environment variables that functions need and do not get."""
    stages = context.stages()
    for path, spec in specs_in(context.specs):
        if not isinstance(spec, FunctionSource | RowsSpec | CurateStep):
            continue
        stage = next((stage for name, stage in stages.items() if f"{path}.".startswith(f"{name}.")), None)
        for number, name in enumerate(spec.environment):
            at = f"{path}.environment.{number}"
            if stage and stage.placement:
                if name not in stage.placement.secrets:
                    yield Problem(at, name, f"a variable that is sent along: add it to placement.secrets: [{name}]")
            elif runs_on_a_cluster():
                if name not in [*(stage.pod.secrets if stage and stage.pod else ()), *secrets_of_all()]:
                    yield Problem(at, name, f"a variable that the pod has: add it to pod.secrets: [{name}]")
            elif name not in os.environ:
                yield Problem(at, name, f"an environment variable that is set here: export {name}=…")


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, text or function) of everything in a recipe."""
    if isinstance(value, Function | str):
        yield path, value
    elif any(path.endswith(f".{names}") for names in NAMES):
        return
    else:
        for name, item in items(value):
            yield from _leaves(item, f"{path}.{name}" if path else name)
