"""A client of Flyte's connector service, which makes the calls of propeller's plugin: gRPC, with deadlines."""

import threading
from dataclasses import dataclass
from typing import Any

import grpc
from flyteidl.admin import agent_pb2
from flyteidl.core.execution_pb2 import TaskExecution
from flyteidl.core.literals_pb2 import LiteralMap
from flyteidl.core.tasks_pb2 import TaskTemplate
from flyteidl.service import agent_pb2_grpc

from tests.cluster.failure import Failed

POLL_S = 0.5
UNFINISHED = (
    TaskExecution.UNDEFINED,
    TaskExecution.QUEUED,
    TaskExecution.WAITING_FOR_RESOURCES,
    TaskExecution.INITIALIZING,
    TaskExecution.RUNNING,
)
RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True)
class Connector:
    address: str
    deadline_s: float

    def run(
        self, task: TaskTemplate, inputs: LiteralMap, output_prefix: str, stopped: threading.Event
    ) -> LiteralMap | None:
        """Run a task, and return its outputs, or None if they are in storage. Raises Failed."""
        if not task.container.image:
            raise Failed("Node Id: container, Value required [image]", recoverable=False)
        category = agent_pb2.TaskCategory(name=task.type, version=task.task_type_version)
        with grpc.insecure_channel(self.address) as channel:
            service = agent_pb2_grpc.AsyncAgentServiceStub(channel)
            create = agent_pb2.CreateTaskRequest(template=task, inputs=inputs, output_prefix=output_prefix)
            try:
                meta = service.CreateTask(create, timeout=self.deadline_s).resource_meta
            except grpc.RpcError as error:  # always a user error, and not retried
                raise Failed(f"failed to create the task: {_message(error)}", recoverable=False) from error
            get = agent_pb2.GetTaskRequest(resource_meta=meta, task_type=task.type, task_category=category)
            while True:
                try:
                    found = service.GetTask(get, timeout=self.deadline_s).resource
                except grpc.RpcError as error:
                    if error.code() not in RETRIED:
                        raise Failed(_message(error), recoverable=False) from error
                    found = agent_pb2.Resource(phase=TaskExecution.RUNNING)
                if found.phase == TaskExecution.SUCCEEDED:
                    return found.outputs if found.HasField("outputs") else None
                if found.phase not in UNFINISHED:
                    raise Failed(found.message, recoverable=found.phase == TaskExecution.RETRYABLE_FAILED)
                if stopped.wait(POLL_S):
                    delete = agent_pb2.DeleteTaskRequest(
                        resource_meta=meta, task_type=task.type, task_category=category
                    )
                    service.DeleteTask(delete, timeout=self.deadline_s)
                    raise Failed("aborted", recoverable=False)


def _message(error: Any) -> str:
    return f"{error.code().name}: {error.details()}"
