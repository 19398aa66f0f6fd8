"""A part of a DAG whose shape is known only at run time: a Flyte dynamic workflow, set up for its pod on a cluster.

A pod that fails here ends the execution, so it closes the execution's record: no later pod could.
"""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from flytekit import Resources, dynamic
from flytekit.exceptions.user import FlyteRecoverableException

import images
from infra.errors import Stopped
from infra.flyte_hooks import POD_ENVIRONMENT
from infra.launch import Terminated, sigterm_as_exit
from infra.placement.storage import StorageError
from infra.pod import this_pod
from infra.pod_spec import SECRETS_OF_ALL, secrets_of_all
from infra.pod_task import secret
from infra.tracking.execution import end_execution
from infra.tracking.spool import FAILED, KILLED
from infra.tracking.store import TrackingUnreachable
from workflows.pod_defaults import fitted
from workflows.recipe import context_of

F = TypeVar("F", bound=Callable[..., Any])

SMALL = Resources(cpu="500m", mem="1Gi")  # to compile a DAG and query the model registry
RETRIES = 2  # if the tracking store may be back for another pod; Flyte counts lost pods separately


def dag_part(function: F) -> F:
    """Make a function a dynamic workflow. Its input `recipe`, if any, gets the resources of its stages' pods."""

    @wraps(function)
    def in_pod(**inputs: Any) -> Any:
        if this_pod() is None:
            return function(**inputs)
        try:
            with sigterm_as_exit():
                if "recipe" in inputs:
                    inputs["recipe"] = fitted(inputs["recipe"], context_of(inputs["recipe"]))
                return function(**inputs)
        except Terminated:
            end_execution(KILLED)
            raise
        except FlyteRecoverableException:
            raise
        except Exception as error:
            if not _is_outage(error):
                end_execution(FAILED)
                raise
            message = error.message if isinstance(error, Stopped) else str(error)
            raise FlyteRecoverableException(message) from error

    names = secrets_of_all()
    made: F = dynamic(
        in_pod,
        container_image=images.DATA,
        retries=RETRIES,
        requests=SMALL,
        limits=SMALL,
        secret_requests=[secret(name) for name in names] or None,
        environment=POD_ENVIRONMENT | ({SECRETS_OF_ALL: os.environ[SECRETS_OF_ALL]} if names else {}),
    )
    return made


def _is_outage(error: Exception) -> bool:
    """Whether the tracking store or the storage is unreachable, and may be back for the next pod. MLflow's errors are
    recognized by their module, since MLflow is not imported here."""
    if isinstance(error, StorageError):
        return error.curable
    return isinstance(error, TrackingUnreachable) or type(error).__module__.split(".")[0] in ("mlflow", "requests")
