"""Flyte's admin service for registrations, which stores the requests that it receives."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from flyteidl.admin import launch_plan_pb2, project_pb2, task_pb2, version_pb2, workflow_pb2
from flyteidl.service import admin_pb2_grpc


class Admin(admin_pb2_grpc.AdminServiceServicer):  # type: ignore[misc]
    """The requests of each kind, in their order."""

    def __init__(self) -> None:
        self.tasks: list[Any] = []
        self.workflows: list[Any] = []
        self.launch_plans: list[Any] = []

    def CreateTask(self, request: Any, context: Any) -> Any:
        self.tasks.append(request)
        return task_pb2.TaskCreateResponse()

    def CreateWorkflow(self, request: Any, context: Any) -> Any:
        self.workflows.append(request)
        return workflow_pb2.WorkflowCreateResponse()

    def CreateLaunchPlan(self, request: Any, context: Any) -> Any:
        self.launch_plans.append(request)
        return launch_plan_pb2.LaunchPlanCreateResponse()

    def GetVersion(self, request: Any, context: Any) -> Any:
        return version_pb2.GetVersionResponse()

    def ListProjects(self, request: Any, context: Any) -> Any:
        return project_pb2.Projects()


@contextmanager
def admin() -> Iterator[tuple[Admin, str]]:
    """Run the service on a port of this machine; yields the service and its address."""
    service, server = Admin(), grpc.server(ThreadPoolExecutor(4))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None)
