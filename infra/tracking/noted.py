"""What only SkyPilot knows of a job (its place, price and recoveries), added to the record that the job has made of
its stage: by a cluster's connector, whose disk is not the job's."""

from collections.abc import Mapping
from typing import Any

from infra.tracking.forwarder import flyte_s_import_lock
from infra.tracking.store import EXPERIMENT, PushFailed, passed_on, prepare_client


def note(environment: Mapping[str, str], execution: str, job: str, where: dict[str, Any]) -> bool:
    """`environment`: the job's, which says where it tracks. Returns whether there is such a record by now, or no
    server for it. Raises PushFailed. Imports MLflow."""
    server = environment.get("MLFLOW_TRACKING_URI", "")
    if not passed_on(server):
        return True
    prepare_client()
    with flyte_s_import_lock():
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    try:
        client = MlflowClient(server)
        experiment = client.get_experiment_by_name(environment.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT)
        key = f"tags.`baton.execution` = '{execution}' and tags.`baton.placed.job` = '{job}'"
        found = client.search_runs([experiment.experiment_id], key) if experiment else []
        for run in found:
            for name, value in where.items():
                client.set_tag(run.info.run_id, f"baton.placed.{name}", str(value))
    except MlflowException as error:
        raise PushFailed(str(error)) from error
    return bool(found)
