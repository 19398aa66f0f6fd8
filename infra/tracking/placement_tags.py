"""Add SkyPilot's facts about a job (place, price, recoveries) to its stage's MLflow run. Used by a cluster's connector,
which does not share a disk with the job."""

from collections.abc import Mapping
from typing import Any

from baton.infra.flyte.hooks import import_lock
from baton.infra.tracking.store import EXPERIMENT, PushFailed, passed_on, prepare_client


def note(environment: Mapping[str, str], execution: str, job: str, where: dict[str, Any]) -> bool:
    """Set the tags. `environment`: the job's environment, with its tracking server. Returns True if the run exists by
    now, or if there is no server. Raises PushFailed. Imports MLflow."""
    server = environment.get("MLFLOW_TRACKING_URI", "")
    if not passed_on(server):
        return True
    prepare_client()
    with import_lock():
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    try:
        client = MlflowClient(server)
        experiment = client.get_experiment_by_name(environment.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT)
        key = f"tags.`baton.execution` = '{execution}' and tags.`baton.placed.job` = '{job}'"
        runs = client.search_runs([experiment.experiment_id], key) if experiment else []
        for run in runs:
            for name, value in where.items():
                client.set_tag(run.info.run_id, f"baton.placed.{name}", str(value))
    except MlflowException as error:
        raise PushFailed(str(error)) from error
    return bool(runs)
