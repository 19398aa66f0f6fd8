"""The connector's service: a process of `pyflyte serve connector`, called over gRPC with Flyte's deadlines."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
from flyteidl.admin import agent_pb2
from flyteidl.core import literals_pb2, tasks_pb2
from flyteidl.service.agent_pb2_grpc import AsyncAgentServiceStub
from flytekit.core.context_manager import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.extend.backend.utils import is_terminal_phase

from baton.infra.flyte.options import OPTIONS, Options
from baton.infra.placement.config import NO_IMAGE
from tests.placement.world import until

DEADLINE_S = 10.0  # Flyte's default for create, get and delete
SECRETS = {"HF_TOKEN": "hf_" + "Z" * 30, "AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "test-secret"}
SLURM = {"infra": ["slurm/alpha"], "storage": "/shared"}


class Connector:
    """A connector's process, and a client that calls it as propeller does."""

    def __init__(self, port: int, url: str, log: Path | None = None, secrets: Mapping[str, str] = SECRETS) -> None:
        self.port, self._url, self.log, self._secrets = port, url, log, {**secrets}
        self.work = ""  # the work that the executions request
        self.environment: dict[str, str] = {}  # the environment of the execution
        self.start()

    def start(self) -> None:
        words = ["serve", "connector", "--port", str(self.port), "--prometheus_port", str(free_port())]
        self.process = subprocess.Popen(
            [str(Path(sys.executable).parent / "pyflyte"), *words, "--modules", "baton.infra.flyte.connector"],
            env=os.environ | {"SKYPILOT_API_SERVER_ENDPOINT": self._url} | self._secrets,
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("ab") if self.log else None,
        )
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        grpc.channel_ready_future(self.channel).result(120)
        self._stub: Any = AsyncAgentServiceStub(self.channel)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.channel.close()  # the next channel would inherit the backoff of an open one

    def create(self, output_prefix: str = "", placement: dict[str, Any] = SLURM, command: Sequence[str] = ()) -> bytes:
        """Create an attempt of the execution f0123456789; `command` replaces the task's command."""
        request = agent_pb2.CreateTaskRequest(output_prefix=output_prefix or f"/out/{uuid4()}", template=template())
        request.template.container.args[:] = command or request.template.container.args
        request.task_execution_metadata.environment_variables.update(self.environment)
        request.inputs.CopyFrom(inputs(self.work, placement))
        asks = request.task_execution_metadata.task_execution_id.node_execution_id.execution_id
        asks.project, asks.domain, asks.name = "llm", "production", "f0123456789"
        made: bytes = self._stub.CreateTask(request, timeout=DEADLINE_S).resource_meta
        return made

    def get(self, job: bytes) -> Any:
        request = agent_pb2.GetTaskRequest(resource_meta=job, task_category={"name": "skypilot"})
        return self._stub.GetTask(request, timeout=DEADLINE_S).resource

    def delete(self, job: bytes) -> None:
        request = agent_pb2.DeleteTaskRequest(resource_meta=job, task_category={"name": "skypilot"})
        self._stub.DeleteTask(request, timeout=DEADLINE_S)

    def reaches(self, job: bytes, phase: Any, timeout_s: float = 60.0) -> Any:
        """Poll until the job is in a phase, and return the connector's last answer."""
        last: list[Any] = []

        def there() -> bool:
            last[:] = [self.get(job)]
            assert last[0].phase == phase or not is_terminal_phase(last[0].phase), last[0].message
            return bool(last[0].phase == phase)

        until(there, "the phase", timeout_s)
        return last[0]


def template() -> tasks_pb2.TaskTemplate:
    """Return a placed task as propeller has it, with its command filled in."""
    made = tasks_pb2.TaskTemplate(type="skypilot", id={"name": "baton.tasks.pretrain.task.pretrain"})
    made.metadata.discovery_version = "1"
    made.container.image = NO_IMAGE
    made.container.args.extend(["pyflyte-execute", "--raw-output-data-prefix", "s3://raw/ab/f0-n0-0"])
    made.container.env.add(key="MLFLOW_EXPERIMENT_NAME", value="of-the-task")
    made.custom.update({"storage": "/of/the/client", "execution": "the-client-s", "code": {"commit": "c0ffee"}})
    return made


def inputs(work: str, placement: dict[str, Any]) -> literals_pb2.LiteralMap:
    made = literals_pb2.LiteralMap()
    made.literals["spec"].scalar.primitive.string_value = work
    options = Options(fields={"placement": placement})
    literal = TypeEngine.to_literal(
        FlyteContextManager.current_context(), options, Options, TypeEngine.to_literal_type(Options)
    )
    made.literals[OPTIONS].CopyFrom(literal.to_flyte_idl())
    return made


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
