"""Reward completions that are JSON conforming to a schema (jsonschema). Remote references are not fetched."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict, Field

from tasks.rewards.builtin.builtin import Builtin
from tasks.rewards.call import text_of
from tasks.spec import Problem


class JsonSchema(Builtin):
    """1 for a valid document, ½ for other JSON, 0 for anything else."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    schema_: dict[str, Any] = Field(alias="schema", description="a JSON Schema; draft 2020-12 unless it names another")

    def problems(self) -> list[Problem]:
        from jsonschema import SchemaError
        from jsonschema.validators import validator_for

        try:
            validator_for(self.schema_).check_schema(self.schema_)
        except SchemaError as error:
            return [Problem("schema", self.schema_, f"a JSON Schema; {error.json_path}: {error.message:.200}")]
        return []

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        from jsonschema.validators import validator_for
        from referencing import Registry

        validator = validator_for(self.schema_)(self.schema_, registry=Registry())
        rewards: list[float | None] = []
        for completion in completions:
            try:
                document = json.loads(text_of(completion), parse_constant=_not_json)
                rewards.append(1.0 if validator.is_valid(document) else 0.5)
            except (ValueError, RecursionError):  # not JSON, or nested a thousand levels deep
                rewards.append(0.0)
        return rewards


def _not_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
