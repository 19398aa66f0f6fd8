"""A task that Flyte's connector service runs, called as propeller's plugin does: gRPC, with its deadlines."""

import threading
import time
from typing import Any

import grpc
from flyteidl.admin import agent_pb2
from flyteidl.core.execution_pb2 import TaskExecution
from flyteidl.core.literals_pb2 import LiteralMap
from flyteidl.core.tasks_pb2 import TaskTemplate
from flyteidl.service import agent_pb2_grpc

from tests.cluster.failure import Failed

TASK_TYPE = "skypilot"
DEADLINE_S = 10.0  # of each call, unless the operator sets another
POLL_S = 0.5
RUNNING = (TaskExecution.UNDEFINED, TaskExecution.QUEUED, TaskExecution.INITIALIZING, TaskExecution.RUNNING)


def run_through(
    address: str, task: TaskTemplate, inputs: LiteralMap, output_prefix: str, stopped: threading.Event
) -> LiteralMap | None:
    """The outputs; None: they are in storage. Raises Failed."""
    if not (task.HasField("container") and task.container.image):
        raise Failed("Node Id: container, Value required [image]", recoverable=False)
    category = agent_pb2.TaskCategory(name=task.type, version=task.task_type_version)
    with grpc.insecure_channel(address) as channel:
        service = agent_pb2_grpc.AsyncAgentServiceStub(channel)
        try:
            request = agent_pb2.CreateTaskRequest(template=task, inputs=inputs, output_prefix=output_prefix)
            meta = service.CreateTask(request, timeout=DEADLINE_S).resource_meta
        except grpc.RpcError as error:  # a user error, and not retried
            raise Failed(f"failed to create task: {_said(error)}", recoverable=False) from error
        while True:
            if stopped.is_set():
                request = agent_pb2.DeleteTaskRequest(resource_meta=meta, task_type=task.type, task_category=category)
                service.DeleteTask(request, timeout=DEADLINE_S)
                raise Failed("aborted", recoverable=False)
            request = agent_pb2.GetTaskRequest(resource_meta=meta, task_type=task.type, task_category=category)
            try:
                found = service.GetTask(request, timeout=DEADLINE_S).resource
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise Failed(_said(error), recoverable=False) from error
                found = agent_pb2.Resource(phase=TaskExecution.RUNNING)  # it is asked again
            if found.phase == TaskExecution.SUCCEEDED:
                return found.outputs if found.HasField("outputs") else None
            if found.phase not in RUNNING:
                raise Failed(found.message, recoverable=found.phase == TaskExecution.RETRYABLE_FAILED)
            time.sleep(POLL_S)


def _said(error: Any) -> str:
    return f"{error.code().name}: {error.details()}"
