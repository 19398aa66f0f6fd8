"""Close executions of a Flyte cluster that have ended without being closed, since a killed pod can't report its end.
They get the status that Flyte has or, if no Flyte is configured, are closed after a long time without a sign of
life."""

import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from baton.infra.errors import UserError
from baton.infra.text import clause
from baton.infra.tracking.mlflow_records import FLYTE_TAG, PARENT_TAG, SEEN_TAG
from baton.infra.tracking.push import runs_with
from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.spool import FAILED, FINISHED, KILLED, RUNNING

EXECUTION_TAG = "baton.execution"
LOST_S = 6 * 3600.0  # time without a sign of life of any pod, since a pod may wait for a machine for hours
PHASES = {"SUCCEEDED": FINISHED, "FAILED": FAILED, "ABORTED": KILLED, "TIMED_OUT": FAILED}
End = tuple[str, float]  # status, seconds since the epoch


class FlyteUnreachable(UserError):
    """Raised if the configured Flyte can't be reached."""


def close_ended(client: MlflowClient) -> list[str]:
    """Close executions that have ended, and running stages of closed executions. Return the ids of the executions.
    Raises MlflowException, FlyteUnreachable."""
    closed = _close_left_stages(client)
    find_end = _end_finder()
    for execution in runs_with(client, {"baton.role": "execution"}, f"attributes.status = '{RUNNING}'"):
        if FLYTE_TAG not in execution.data.tags:
            continue
        if EXECUTION_TAG not in execution.data.tags:  # merged into another pod's run, and later set to running again
            client.set_terminated(execution.info.run_id)
            continue
        stages = runs_with(client, {EXECUTION_TAG: execution.data.tags[EXECUTION_TAG], "baton.role": "stage"})
        if end := find_end(execution, stages):
            for stage in stages:
                if stage.info.status == RUNNING:
                    client.set_terminated(stage.info.run_id, KILLED, int(min(last_seen(stage), end[1]) * 1000))
            client.set_terminated(execution.info.run_id, end[0], int(end[1] * 1000))
            closed.append(execution.data.tags[EXECUTION_TAG])
    return closed


def _close_left_stages(client: MlflowClient) -> list[str]:
    """Close the running stages of closed executions, whose pods ended without reporting it. A pod that is still running
    reports its own end later."""
    left: dict[str, list[Run]] = defaultdict(list)
    for stage in runs_with(client, {"baton.role": "stage"}, f"attributes.status = '{RUNNING}'"):
        left[stage.data.tags.get(PARENT_TAG, "")].append(stage)
    closed = []
    for parent, stages in left.items():
        execution = _run(client, parent) if parent else None
        if execution is None or execution.info.status == RUNNING or execution.info.end_time is None:
            continue
        for stage in stages:
            ended = max(int(min(last_seen(stage) * 1000, execution.info.end_time)), stage.info.start_time)
            client.set_terminated(stage.info.run_id, KILLED, ended)
        closed.append(execution.data.tags.get(EXECUTION_TAG, parent))
    return closed


def _run(client: MlflowClient, run_id: str) -> Run | None:
    """Return a run, or None if it was permanently deleted."""
    try:
        return client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def _end_finder() -> Callable[[Run, list[Run]], End | None]:
    """Return a function that returns how an execution ended, or None if it is still running. Raises
    FlyteUnreachable."""
    configured = "FLYTECTL_CONFIG" in os.environ or "FLYTE_PLATFORM_URL" in os.environ
    if not configured and not (Path.home() / ".flyte/config.yaml").exists():
        return _by_silence
    from flyteidl.core.execution_pb2 import WorkflowExecution
    from flytekit.clients.friendly import SynchronousFlyteClient
    from flytekit.configuration import Config
    from flytekit.exceptions.base import FlyteException
    from flytekit.exceptions.user import FlyteEntityNotExistException, FlyteInvalidInputException
    from flytekit.models.core.identifier import WorkflowExecutionIdentifier

    platform = Config.auto().platform
    client = SynchronousFlyteClient(platform)

    def unreachable(error: FlyteException) -> FlyteUnreachable:
        details = getattr(error.__cause__, "details", lambda: str(error))()
        return FlyteUnreachable(
            f"Flyte's admin at {platform.endpoint} can't be asked how executions ended, which stay RUNNING in MLflow: "
            f"{clause(redact_text(str(details))[:300])}. FLYTE_PLATFORM_URL (in infra/flyte/tracking.yaml), or Flyte's "
            "configuration file, must name it as your Helm release does"
        )

    try:
        client.get_control_plane_version()
    except FlyteException as error:
        raise unreachable(error) from error

    def by_flyte(execution: Run, stages: list[Run]) -> End | None:
        try:
            response = client.get_execution(WorkflowExecutionIdentifier(*execution.data.tags[FLYTE_TAG].split("/")))
        except (FlyteEntityNotExistException, FlyteInvalidInputException):  # the execution is on another cluster
            return _by_silence(execution, stages)
        except FlyteException as error:
            raise unreachable(error) from error
        ended = (response.closure.started_at + response.closure.duration).timestamp()  # 1970: ended before its start
        phase = WorkflowExecution.Phase.Name(response.closure.phase)
        return (PHASES[phase], max(ended, last_seen(execution))) if phase in PHASES else None

    return by_flyte


def _by_silence(execution: Run, stages: list[Run]) -> End | None:
    last = max(map(last_seen, [execution, *stages]))
    if time.time() - last < LOST_S:
        return None
    statuses = {stage.info.status for stage in stages}
    return (next((status for status in (FAILED, KILLED) if status in statuses), KILLED), last)


def last_seen(run: Run) -> float:
    """Return the time of a run's last sign of life."""
    return max(float(run.data.tags.get(SEEN_TAG, 0)), float(run.info.end_time or run.info.start_time) / 1000)
