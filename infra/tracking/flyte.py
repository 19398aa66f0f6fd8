"""Executions of a Flyte cluster that nobody has closed, closed by a reader: as Flyte says they ended, or, where no
Flyte is configured, when nothing has been heard of them for long. A pod knows of itself alone, and one that was killed
says nothing."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from infra.tracking.push import runs_with
from infra.tracking.spool import FAILED, FINISHED, KILLED, RUNNING
from infra.tracking.words import FLYTE_TAG, SEEN_TAG

EXECUTION_TAG = "baton.execution"
LOST_S = 6 * 3600.0  # without a word of any pod; one may wait for its machine for hours
PHASES = {"SUCCEEDED": FINISHED, "FAILED": FAILED, "ABORTED": KILLED, "TIMED_OUT": FAILED}
End = tuple[str, float]  # status, seconds since the epoch


def close_ended(client: MlflowClient) -> list[str]:
    """Close what is over; returns the ids of those executions. Raises MlflowException."""
    closed = []
    asked = _flyte()
    for execution in runs_with(client, {"baton.role": "execution"}, f"attributes.status = '{RUNNING}'"):
        if FLYTE_TAG not in execution.data.tags:
            continue
        if EXECUTION_TAG not in execution.data.tags:  # merged into another pod's run, and set to running by its maker
            client.set_terminated(execution.info.run_id)
            continue
        stages = runs_with(client, {EXECUTION_TAG: execution.data.tags[EXECUTION_TAG], "baton.role": "stage"})
        if end := asked(execution, stages):
            for stage in stages:
                if stage.info.status == RUNNING:
                    client.set_terminated(stage.info.run_id, KILLED, int(min(last_seen(stage), end[1]) * 1000))
            client.set_terminated(execution.info.run_id, end[0], int(end[1] * 1000))
            closed.append(execution.data.tags[EXECUTION_TAG])
    return closed


def _flyte() -> Callable[[Run, list[Run]], End | None]:
    """How to learn whether an execution is over."""
    configured = "FLYTECTL_CONFIG" in os.environ or "FLYTE_PLATFORM_URL" in os.environ
    if not configured and not (Path.home() / ".flyte/config.yaml").exists():
        return _by_silence
    from flyteidl.core.execution_pb2 import WorkflowExecution
    from flytekit.clients.friendly import SynchronousFlyteClient
    from flytekit.configuration import Config
    from flytekit.exceptions.base import FlyteException
    from flytekit.models.core.identifier import WorkflowExecutionIdentifier

    client = SynchronousFlyteClient(Config.auto().platform)

    def ask(execution: Run, stages: list[Run]) -> End | None:
        try:
            found = client.get_execution(WorkflowExecutionIdentifier(*execution.data.tags[FLYTE_TAG].split("/")))
        except FlyteException:  # it is not that cluster's, or that cluster does not answer
            return _by_silence(execution, stages)
        ended = (found.closure.started_at + found.closure.duration).timestamp()  # 1970: it was over before it started
        phase = WorkflowExecution.Phase.Name(found.closure.phase)
        return (PHASES[phase], max(ended, last_seen(execution))) if phase in PHASES else None

    return ask


def _by_silence(execution: Run, stages: list[Run]) -> End | None:
    last = max(map(last_seen, [execution, *stages]))
    if time.time() - last < LOST_S:
        return None
    statuses = {stage.info.status for stage in stages}
    return (next((status for status in (FAILED, KILLED) if status in statuses), KILLED), last)


def last_seen(run: Run) -> float:
    """The last sign of life."""
    return max(float(run.data.tags.get(SEEN_TAG, 0)), float(run.info.end_time or run.info.start_time) / 1000)
