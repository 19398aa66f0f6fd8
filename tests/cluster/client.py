"""A client with a checkout, which runs `pyflyte` as a process against the tests' admin."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import yaml
from flyteidl.admin import execution_pb2
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]

from baton.images import FAMILIES
from tests.cluster.admin import Admin

PYFLYTE = str(Path(sys.executable).with_name("pyflyte"))
PROJECT, DOMAIN = "flytesnacks", "development"
DIGEST = "sha256:" + 64 * "0"
IMAGES = {f"baton-{family}": f"registry.example/baton-{family}@{DIGEST}" for family in FAMILIES}


class Refused(Exception):
    """The client refused or failed. The message of the exception is the client's output."""


class Client:
    def __init__(self, admin: Admin, address: str, folder: Path, **environment: str) -> None:
        self.admin, self.folder = admin, folder
        self.config = folder / "config.yaml"
        settings = {"admin": {"endpoint": address, "insecure": True}, "images": IMAGES}
        self.config.write_text(yaml.safe_dump(settings))
        self._environment = os.environ | {"BATON_HOME": str(folder / "baton")} | environment

    def register(self, path: Path) -> None:
        where = ("--project", PROJECT, "--domain", DOMAIN, "--destination-dir", ".")
        self._pyflyte("register", *where, str(path))

    def start(self, workflow: str, **inputs: Any) -> Any:
        """Start an execution of the newest launch plan of a registered workflow, with inputs of plain Python types."""
        plan = next(each for each in reversed(self.admin.launch_plans) if each.id.name.endswith(workflow))
        spec = execution_pb2.ExecutionSpec(launch_plan=plan.id)
        context = FlyteContextManager.current_context()
        literals = TypeEngine.dict_to_literal_map(context, inputs).to_flyte_idl()
        request = execution_pb2.ExecutionCreateRequest(project=PROJECT, domain=DOMAIN, spec=spec, inputs=literals)
        self.admin.CreateExecution(request, None)
        return request

    def again(self, execution: Any, *, overwrite_cache: bool = False) -> Any:
        """Start an execution again with the same inputs, as "Relaunch" in Flyte's console does."""
        request = execution_pb2.ExecutionCreateRequest()
        request.CopyFrom(execution)
        request.name, request.spec.overwrite_cache = "", overwrite_cache
        self.admin.CreateExecution(request, None)
        return request

    def inputs(self, execution: Any) -> dict[str, Any]:
        """Return the inputs, which are pydantic models, as plain values."""
        return {name: msgpack.unpackb(each.scalar.binary.value) for name, each in execution.inputs.literals.items()}

    def with_inputs(self, execution: Any, **inputs: Any) -> Any:
        """Start an execution with other inputs, as if typed in Flyte's console, which does not validate them."""
        request = execution_pb2.ExecutionCreateRequest()
        request.CopyFrom(execution)
        request.name = ""
        for name, value in inputs.items():
            ParseDict(value, request.inputs.literals[name].scalar.generic)
        self.admin.CreateExecution(request, None)
        return request

    def run(self, file: Path, workflow: str, *words: str, **environment: str) -> Any:
        """Run `pyflyte run --remote --copy all` and return the execution that it created. Raises Refused."""
        options = ("--remote", "--copy", "all", "--project", PROJECT, "--domain", DOMAIN)
        before = len(self.admin.executions)
        said = self._pyflyte("run", *options, str(file), workflow, *words, **environment)
        if len(self.admin.executions) != before + 1:
            raise Refused(said)
        return self.admin.executions[-1]

    def _pyflyte(self, *words: str, **environment: str) -> str:
        done = subprocess.run(
            [PYFLYTE, "--config", str(self.config), *words],
            cwd=self.folder,
            env=self._environment | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Refused(done.stdout + done.stderr)
        return done.stdout + done.stderr
