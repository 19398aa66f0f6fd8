"""How Flyte types pydantic models."""

from flytekit.core.type_engine import TypeEngine, TypeTransformer
from flytekit.extras.pydantic_transformer.transformer import PydanticTransformer
from flytekit.models.types import LiteralType
from pydantic import BaseModel


class _NoFields(BaseModel):
    """A model whose Flyte type has no fields in its schema."""


class _WithoutSchema(PydanticTransformer):
    """Models without their JSON schema, which Flyte's catalog makes part of a cache key: a changed
    description would run every stage again."""

    def __init__(self, kind: type[BaseModel]) -> None:
        standard = PydanticTransformer()
        TypeTransformer.__init__(self, standard.name, kind, enable_type_assertions=False)
        self._plain = standard.get_literal_type(_NoFields)

    def get_literal_type(self, t: type[BaseModel]) -> LiteralType:
        return LiteralType(simple=self._plain.simple, annotation=self._plain.annotation)


def without_schema(*kinds: type[BaseModel]) -> None:
    """Make these and the models derived from them types without a schema."""
    first, *more = kinds
    TypeEngine.register(_WithoutSchema(first), additional_types=more)
