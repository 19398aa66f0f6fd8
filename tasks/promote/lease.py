"""A lease on a model, in the model registry, which every machine and every pod can read.

The lease is a tag of the registered model, renewed by the execution that holds it. On a Flyte cluster, where an
execution is a sequence of pods, it is also valid while the execution's run in MLflow is active. Only an expired lease
is taken over.
The tag is written under the claim that also guards the champion (tasks/publish/champion.py).
"""

import json
import time

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from baton.infra.flyte.executions import LOST_S, last_seen
from baton.infra.tracking.mlflow_records import FLYTE_TAG
from baton.infra.tracking.push import runs_with
from baton.infra.tracking.spool import FINISHED, RUNNING
from baton.infra.tracking.sqlite import make_tables
from baton.tasks.publish.aliases import find_model
from baton.tasks.publish.champion import Hold, while_claimed
from baton.tasks.publish.registry import PATIENCE_S, ask

LEASE_TAG = "baton.lease"  # {"execution", "until"}: seconds since the epoch
LEASE_S = 120.0  # validity after the last renewal
RETRY_S = 300.0  # time in which Flyte may retry an execution that failed


def acquire(name: str, execution: str, patience_s: float = PATIENCE_S) -> str | None:
    """Acquire or renew the lease of a model. Returns the other execution that holds the lease, if any. Raises
    StageError."""

    def attempt(client: MlflowClient) -> str | None:
        if find_model(client, name) is None:
            try:
                client.create_registered_model(name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
        return while_claimed(client, name, renew)

    def renew(hold: Hold) -> str | None:
        holder = _holder(hold(), name)
        if holder not in (None, execution):
            return holder
        lease = {"execution": execution, "until": time.time() + LEASE_S}
        hold().set_registered_model_tag(name, LEASE_TAG, json.dumps(lease))
        return None

    return ask(attempt, patience_s=patience_s, prepare=make_tables)


def release(name: str, execution: str, patience_s: float = PATIENCE_S) -> None:
    """Release the lease, if this execution holds it. Raises StageError."""

    def end(hold: Hold) -> None:
        if _holder(hold(), name) == execution:
            hold().delete_registered_model_tag(name, LEASE_TAG)

    ask(lambda client: while_claimed(client, name, end), patience_s=patience_s)


def _holder(client: MlflowClient, name: str) -> str | None:
    model = find_model(client, name)
    if model is None or LEASE_TAG not in model.tags:
        return None
    lease = json.loads(model.tags[LEASE_TAG])
    execution = str(lease["execution"])
    return execution if lease["until"] > time.time() or _is_active(client, execution) else None


def _is_active(client: MlflowClient, execution: str) -> bool:
    """Return whether an execution on a Flyte cluster that has not renewed its lease is still active."""
    stages = runs_with(client, {"baton.execution": execution})
    parent = next((run for run in stages if FLYTE_TAG in run.data.tags), None)
    if parent is None or parent.info.status == FINISHED:
        return False
    patience_s = LOST_S if parent.info.status == RUNNING else RETRY_S
    return time.time() - max(map(last_seen, stages)) < patience_s
