"""A part of a DAG whose shape is known only at run time: a Flyte dynamic workflow, set up for its pod on a cluster.

A pod that fails here ends the execution, so it closes the execution's record: no later pod could.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from flytekit import Resources, dynamic
from flytekit.exceptions.user import FlyteRecoverableException

from baton import images
from baton.infra.errors import sentence
from baton.infra.flyte.hooks import POD_ENVIRONMENT, inputs_are_the_user_s
from baton.infra.flyte.pod_template import secret
from baton.infra.pod import this_pod
from baton.infra.pod_spec import check_secrets, secrets_of_all, secrets_variable
from baton.infra.process.launch import Terminated, sigterm_as_exit
from baton.infra.storage.buckets import StorageError
from baton.infra.tracking.execution import end_execution
from baton.infra.tracking.spool import FAILED, KILLED
from baton.infra.tracking.store import TrackingUnreachable

F = TypeVar("F", bound=Callable[..., Any])

SMALL = Resources(cpu="500m", mem="1Gi")  # to compile a DAG and query the model registry
RETRIES = 2  # if the tracking store may be back for another pod; Flyte counts lost pods separately


def dag_part(function: F) -> F:
    """Make a function a dynamic workflow."""

    @wraps(function)
    def in_pod(**inputs: Any) -> Any:
        if this_pod() is None:
            return function(**inputs)
        try:
            with sigterm_as_exit():
                check_secrets(secrets_of_all())
                return function(**inputs)
        except Terminated:
            end_execution(KILLED)
            raise
        except FlyteRecoverableException:
            raise
        except Exception as error:
            if not _is_outage(error):
                end_execution(FAILED, error=sentence(error))
                raise
            raise FlyteRecoverableException(sentence(error)) from error

    task: F = dynamic(
        in_pod,
        container_image=images.DATA,
        retries=RETRIES,
        requests=SMALL,
        limits=SMALL,
        secret_requests=[secret(name) for name in secrets_of_all()] or None,
        environment=POD_ENVIRONMENT | secrets_variable(),
    )
    inputs_are_the_user_s(task, lambda refused: end_execution(FAILED, error=refused.message))
    return task


def _is_outage(error: Exception) -> bool:
    """Return whether the tracking store or the storage is unreachable but may be back for the next pod. MLflow's errors
    are recognized by their module, since MLflow is not imported here."""
    if isinstance(error, StorageError):
        return error.curable
    return isinstance(error, TrackingUnreachable) or type(error).__module__.split(".")[0] in ("mlflow", "requests")
