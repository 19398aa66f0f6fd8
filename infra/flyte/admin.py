"""Queries to Flyte's admin and to a connector that flytekit's public client lacks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
from flyteidl.admin.agent_pb2 import ListAgentsRequest
from flyteidl.admin.node_execution_pb2 import NodeExecutionListRequest
from flyteidl.admin.task_execution_pb2 import TaskExecutionListRequest
from flyteidl.service.agent_pb2_grpc import AgentMetadataServiceStub
from flytekit.clients.raw import RawSynchronousFlyteClient
from flytekit.configuration import ImageConfig
from flytekit.constants import CopyFileDetection
from flytekit.exceptions.base import FlyteException
from flytekit.remote import FlyteRemote
from flytekit.tools.fast_registration import FastPackageOptions

from baton.infra.text import clause

ERRORS = (FlyteException, grpc.RpcError, OSError, ValueError, AssertionError)  # raised for a cluster's faults
ANSWER_S = 10.0


def admin_version(remote: FlyteRemote) -> str:
    """Return the version of the admin, or "" if it is unknown. Raises one of ERRORS."""
    return str(remote.client.get_control_plane_version() or "")


def task_types(address: str) -> set[str]:
    """Return the task types that a connector runs. Raises grpc.RpcError."""
    with grpc.insecure_channel(address) as channel:
        agents = AgentMetadataServiceStub(channel).ListAgents(ListAgentsRequest(), timeout=ANSWER_S).agents
    return {category.name for agent in agents for category in agent.supported_task_categories}


def start(
    remote: FlyteRemote,
    workflow: Any,
    *,
    project: Path,
    module: str,
    version: str,
    images: ImageConfig,
    inputs: Mapping[str, Any],
    environment: dict[str, str],
) -> Any:
    """Register a workflow with all files of a project, and execute it. Raises one of ERRORS."""
    registered = remote.register_script(
        workflow,
        image_config=images,
        version=version,
        source_path=str(project),
        module_name=module,
        fast_package_options=FastPackageOptions([], copy_style=CopyFileDetection.ALL),
    )
    return remote.execute(registered, inputs={**inputs}, envs=environment)


def pod_reason(remote: FlyteRemote, execution: Any) -> str:
    """Return the reason, reported by Kubernetes to Flyte, why an execution's newest pod is not done, or "" if Flyte has
    no reason. flytekit's models lack the field. Raises one of ERRORS."""
    raw, client = RawSynchronousFlyteClient, remote.client
    of_execution = NodeExecutionListRequest(workflow_execution_id=execution.id.to_flyte_idl(), limit=100)
    reasons = [
        task.closure.reason
        for node in raw.list_node_executions_paginated(client, of_execution).node_executions
        for task in raw.list_task_executions_paginated(
            client, TaskExecutionListRequest(node_execution_id=node.id, limit=100)
        ).task_executions
        if task.closure.reason
    ]
    return reasons[-1] if reasons else ""


def short(error: Any) -> str:
    """Return an error's message on one line, as the beginning of a longer one."""
    message = error.details() if isinstance(error, grpc.Call) else str(error.__cause__ or error)
    return clause(" ".join(message.split())[:300]) or type(error).__name__
