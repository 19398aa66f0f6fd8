"""The base of every spec, and what a spec says when it is wrong.

A spec says *what the result is*. Field types and bounds are pydantic's; what spans several fields
is a `Problem` from `problems()`, so that everything wrong can be reported at once (a pydantic
model validator would not run while any field is wrong).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from infra.placement.address import DIGEST, digest_of
from infra.placement.config import Placement
from infra.pod_spec import PodSpec


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a recipe, in words a person can act on."""

    path: str  # "pretrain.model.heads"
    value: Any  # what was given
    allowed: str  # what would be accepted, or how to get out

    def under(self, prefix: str) -> "Problem":
        """The same problem, seen from one level up."""
        return replace(self, path=f"{prefix}.{self.path}" if self.path else prefix)

    def with_way_out(self, words: str) -> "Problem":
        return Problem(self.path, self.value, f"{self.allowed}; {words}") if words else self

    def __str__(self) -> str:
        return f"{self.path}: {self.value!r}: {self.allowed}"


class NotSeen(Problem):
    """An address that could not be looked up from here: another machine may have the credentials for it."""


def _can_be_looked_up(path: str) -> str:
    try:
        Path(path).expanduser().exists()
    except (OSError, RuntimeError) as error:  # its name is too long, it is not permitted, nobody has that home folder
        raise ValueError(f"a path that can be looked up: {getattr(error, 'strerror', None) or error}") from error
    return path


# of a file or folder, maybe of another machine; or an address
PathText = Annotated[str, AfterValidator(_can_be_looked_up)]


class Spec(BaseModel):
    """A typed, closed part of a recipe: unknown fields are errors, and no value is converted to another type, except
    a whole number where a fraction may stand."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())

    def problems(self) -> list[Problem]:
        """What is wrong across fields, with paths relative to this spec."""
        return []

    @classmethod
    def _not_identity(cls) -> set[str]:
        """The fields that say how a result is reached, not what it is."""
        return {
            name
            for name, field in cls.model_fields.items()
            if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("identity") is False
        }

    def _nested(self) -> "dict[str, Spec]":
        """Its identity's fields that are specs themselves."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name not in self._not_identity()}
        return {name: value for name, value in values.items() if isinstance(value, Spec)}

    def _lists(self) -> "dict[str, list[Spec]]":
        """Its identity's fields that are lists of specs."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name not in self._not_identity()}
        return {
            name: value
            for name, value in values.items()
            if isinstance(value, list) and value and all(isinstance(each, Spec) for each in value)
        }

    def identity(self) -> dict[str, Any]:
        """The fields that make the result, as JSON's types."""
        nested: dict[str, Any] = {name: part.identity() for name, part in self._nested().items()}
        nested |= {name: [part.identity() for part in parts] for name, parts in self._lists().items()}
        return self.model_dump(mode="json", exclude=self._not_identity()) | self._contents() | nested

    def _contents(self) -> dict[str, str]:
        """The addresses that are identified by their content, without where that is."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        found = {name: digest_of(value) for name, value in values.items() if isinstance(value, str)}
        return {name: f"{DIGEST}{digest}" for name, digest in found.items() if digest}

    def as_found(self) -> Self:
        """This spec with the present state of what it names: of files, of functions. With it, a changed file or
        function is another cache key. Raises Stopped."""
        found = {name: _as_found(value) for name, value in self}
        changed = {name: value for name, value in found.items() if value is not getattr(self, name)}
        return self.model_copy(update=changed) if changed else self

    def apart(self) -> tuple[Self, dict[str, Any]]:
        """What the result is, all else at its defaults; and how it is reached: that else, as JSON's types."""
        words = self.model_dump(mode="json", include=self._not_identity(), exclude_defaults=True)
        what: dict[str, Any] = {name: type(self).model_fields[name].get_default() for name in words}
        for name, content in self._contents().items():
            what[name], words[name] = content, getattr(self, name)
        for name, part in self._nested().items():
            inner, rest = part.apart()
            if rest:
                what[name], words[name] = inner, rest
        return self.model_copy(update=what), words

    def joined(self, how: dict[str, Any]) -> Self:
        """The whole that was taken apart."""
        nested = {name: part.joined(how[name]) for name, part in self._nested().items() if name in how}
        inner = {name: part.model_dump(mode="json") for name, part in nested.items()}
        return type(self).model_validate(self.model_dump(mode="json") | how | inner)


class StageSpec(Spec):
    """The spec of a whole stage."""

    placement: Placement | None = Field(
        None, description="Where the stage runs, if not on this machine", json_schema_extra={"identity": False}
    )
    pod: PodSpec | None = Field(
        None, description="What its pod on a Flyte cluster asks for", json_schema_extra={"identity": False}
    )


def not_identity(default: Spec, description: str) -> Any:
    """A field that says how a result is reached, not what it is: it enters no cache key and no digest."""
    return Field(default, description=description, json_schema_extra={"identity": False})


def _as_found(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.as_found()
    if isinstance(value, dict):
        return {name: _as_found(each) for name, each in value.items()}
    return [_as_found(each) for each in value] if isinstance(value, list) else value
