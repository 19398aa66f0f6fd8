"""A connector for the tests of the propeller, controlled by the task's input."""

import time
from dataclasses import dataclass
from typing import Any

from flyteidl.core.execution_pb2 import TaskExecution
from flytekit.extend.backend.base_connector import AsyncConnectorBase, ConnectorRegistry, Resource, ResourceMeta
from flytekit.models.literals import LiteralMap

SLOW_S = 8.0


@dataclass
class Rented(ResourceMeta):
    outcome: str


class Rental(AsyncConnectorBase):
    name = "Rental"

    def __init__(self) -> None:
        super().__init__(task_type_name="skypilot", metadata_type=Rented)

    def create(self, task_template: Any, inputs: LiteralMap | None = None, **_: Any) -> Rented:
        assert inputs and task_template.container.args[0] == "pyflyte-fast-execute"
        outcome = inputs.literals["outcome"].scalar.primitive.string_value
        if outcome == "slow":
            time.sleep(SLOW_S)
        return Rented(outcome)

    def get(self, resource_meta: Rented, **_: Any) -> Resource:
        if resource_meta.outcome == "no capacity":
            return Resource(TaskExecution.RETRYABLE_FAILED, "no place has capacity")
        return Resource(TaskExecution.SUCCEEDED, outputs={"o0": resource_meta.outcome})

    def delete(self, resource_meta: Rented, **_: Any) -> None:
        pass


ConnectorRegistry.register(Rental())
