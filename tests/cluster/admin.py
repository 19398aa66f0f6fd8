"""Flyte's admin and data proxy, as far as registration and the start of an execution need them."""

import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from flyteidl.admin import (
    execution_pb2,
    launch_plan_pb2,
    node_execution_pb2,
    task_execution_pb2,
    version_pb2,
    workflow_pb2,
)
from flyteidl.core import compiler_pb2, identifier_pb2, literals_pb2
from flyteidl.core import execution_pb2 as phases
from flyteidl.service import admin_pb2_grpc, dataproxy_pb2, dataproxy_pb2_grpc

from tests.cluster.storage import Storage
from tests.workflows import flyte_admin

Id = tuple[str, str, str, str]  # project, domain, name, version


class Admin(flyte_admin.Admin, dataproxy_pb2_grpc.DataProxyServiceServicer):  # type: ignore[misc]
    """Flyte's admin with its registered entities. The first entity with an id and a version is kept."""

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self._storage = storage
        self.executions: list[Any] = []  # in order of creation
        self.results: dict[str, Any] = {}  # Done of propeller, by execution name
        self.pending = ""  # the reason why pods are pending, in Kubernetes' words
        self.terminated: list[str] = []  # names of executions
        self.created: Callable[[Any], None] = lambda execution: None

    def all_tasks(self) -> dict[Id, Any]:
        """Return the templates of all tasks by id."""
        return {id_of(each.id): each.spec.template for each in reversed(self.tasks)}

    def workflow(self, id: Any) -> Any:
        """Return the spec of a workflow."""
        return _found(self.workflows, id).spec

    def launch_plan(self, id: Any) -> Any:
        return _found(self.launch_plans, id).spec

    def inputs(self, execution: Any) -> literals_pb2.LiteralMap:
        """Return the inputs of an execution, including those that its launch plan adds."""
        plan = self.launch_plan(execution.spec.launch_plan)
        defaults = {name: each.default for name, each in plan.default_inputs.parameters.items() if not each.required}
        given = defaults | dict(execution.inputs.literals) | dict(plan.fixed_inputs.literals)
        return literals_pb2.LiteralMap(literals=given)

    def CreateTask(self, request: Any, context: Any) -> Any:
        """Register a task. Like the real admin, this accepts the same task again under a known version, and refuses
        another."""
        for known in self.tasks:
            if id_of(known.id) == id_of(request.id):
                same = _content(known.spec) == _content(request.spec)
                if same:
                    context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{request.id.name} already exists")
                words = f"{request.id.name}: task with different structure already exists"
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, words)
        return super().CreateTask(request, context)

    def GetVersion(self, request: Any, context: Any) -> Any:
        return version_pb2.GetVersionResponse(control_plane_version=version_pb2.Version(Version="v1.16.8"))

    def CreateUploadLocation(self, request: Any, context: Any) -> Any:
        folder = request.filename_root or request.content_md5.hex()
        uri = f"{self._storage.root}/{request.project}/{request.domain}/{folder}/{request.filename}"
        return dataproxy_pb2.CreateUploadLocationResponse(signed_url=self._storage.signed(uri), native_url=uri)

    def GetWorkflow(self, request: Any, context: Any) -> Any:
        try:
            spec = self.workflow(request.id)
        except KeyError:
            context.abort(grpc.StatusCode.NOT_FOUND, f"{request.id.name}: not registered")
        closure = compiler_pb2.CompiledWorkflowClosure(
            primary=compiler_pb2.CompiledWorkflow(template=spec.template),
            sub_workflows=[compiler_pb2.CompiledWorkflow(template=each) for each in spec.sub_workflows],
            tasks=[compiler_pb2.CompiledTask(template=each.spec.template) for each in self.tasks],
        )
        return workflow_pb2.Workflow(id=request.id, closure=workflow_pb2.WorkflowClosure(compiled_workflow=closure))

    def GetLaunchPlan(self, request: Any, context: Any) -> Any:
        return launch_plan_pb2.LaunchPlan(id=request.id, spec=self.launch_plan(request.id))

    def CreateExecution(self, request: Any, context: Any) -> Any:
        if not request.name:
            request.name = f"a{secrets.token_hex(10)[:19]}"
        self.executions.append(request)
        self.created(request)
        return execution_pb2.ExecutionCreateResponse(id=_execution_id(request))

    def GetExecution(self, request: Any, context: Any) -> Any:
        created = next(each for each in self.executions if each.name == request.id.name)
        return execution_pb2.Execution(id=request.id, spec=created.spec, closure=self._closure(request.id.name))

    def GetExecutionData(self, request: Any, context: Any) -> Any:
        done = self.results.get(request.id.name)
        return execution_pb2.WorkflowExecutionGetDataResponse(full_outputs=done and done.outputs)

    def TerminateExecution(self, request: Any, context: Any) -> Any:
        self.terminated.append(request.id.name)
        return execution_pb2.ExecutionTerminateResponse()

    def ListNodeExecutions(self, request: Any, context: Any) -> Any:
        id = identifier_pb2.NodeExecutionIdentifier(node_id="n0", execution_id=request.workflow_execution_id)
        return node_execution_pb2.NodeExecutionList(node_executions=[node_execution_pb2.NodeExecution(id=id)])

    def ListTaskExecutions(self, request: Any, context: Any) -> Any:
        closure = task_execution_pb2.TaskExecutionClosure(reason=self.pending)
        return task_execution_pb2.TaskExecutionList(task_executions=[task_execution_pb2.TaskExecution(closure=closure)])

    def _closure(self, name: str) -> Any:
        phase, done = phases.WorkflowExecution, self.results.get(name)
        if done is None:
            return execution_pb2.ExecutionClosure(phase=phase.RUNNING)
        if done.failed is None:
            return execution_pb2.ExecutionClosure(phase=phase.SUCCEEDED)
        return execution_pb2.ExecutionClosure(phase=phase.FAILED, error=phases.ExecutionError(message=str(done.failed)))


def _found(registered: list[Any], id: Any) -> Any:
    for each in registered:
        if id_of(each.id) == id_of(id):
            return each
    raise KeyError(f"{id.name} {id.version}")


def _content(message: Any) -> bytes:
    return bytes(message.SerializeToString(deterministic=True))


def id_of(identifier: Any) -> Id:
    return identifier.project, identifier.domain, identifier.name, identifier.version


def _execution_id(request: Any) -> Any:
    return identifier_pb2.WorkflowExecutionIdentifier(project=request.project, domain=request.domain, name=request.name)


@contextmanager
def admin(storage: Storage) -> Iterator[tuple[Admin, str]]:
    """Serve admin and data proxy on a port of this machine; yields the Admin and its address."""
    service, server = Admin(storage), grpc.server(ThreadPoolExecutor(4))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(service, server)
    dataproxy_pb2_grpc.add_DataProxyServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        server.stop(grace=None)
