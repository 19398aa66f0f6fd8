"""Reward completions that are JSON conforming to a schema (jsonschema), ignoring thinking (`<think>…</think>`).
Remote references are not fetched."""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from baton.tasks.core.json_data import JsonObject
from baton.tasks.core.spec import Problem
from baton.tasks.rewards.builtin.builtin import EACH_S, Builtin, final, time_limit
from baton.tasks.rewards.call import text_of

_NO_JSON = object()


class JsonSchema(Builtin):
    """1 for a valid document, ½ for other JSON, 0 for anything else."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)
    reads_answers: ClassVar[bool] = True
    each_s: ClassVar[float] = EACH_S

    schema_: JsonObject = Field(alias="schema", description="a JSON Schema; draft 2020-12 unless it names another")

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
            document = _parsed(text_of(completion))
            if document is _NO_JSON:
                document = _parsed(final(completion))
            rewards.append(0.0 if document is _NO_JSON else 1.0 if self._is_valid(validator, document) else 0.5)
        return rewards

    def _is_valid(self, validator: Any, document: Any) -> bool:
        try:
            with time_limit(EACH_S):
                return bool(validator.is_valid(document))
        except Exception as error:  # such as an overflow, a missing reference, or a slow pattern
            self._report_once(f"json_schema: a document could not be checked: {type(error).__name__}: {error}")
            return False


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError):  # not JSON, or nested a thousand levels deep
        return _NO_JSON


def _not_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
