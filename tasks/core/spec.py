"""The base class of every spec, and the problems that a spec reports.

A spec defines *what the result is*. pydantic checks field types and bounds; `problems()` returns the problems that span
several fields, so that all are reported at once (a pydantic model validator does not run while any field is invalid).
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from baton.infra.placement.config import Placement
from baton.infra.pod_spec import PodSpec
from baton.infra.storage.address import DIGEST, digest_of


@dataclass(frozen=True)
class Problem:
    """One problem in a recipe, as an actionable message."""

    path: str  # "pretrain.model.heads"
    value: Any  # the given value
    allowed: str  # description of allowed values, or of a fix

    def under(self, prefix: str) -> "Problem":
        """Return the same problem with a path from one level up."""
        return replace(self, path=f"{prefix}.{self.path}" if self.path else prefix)

    def __str__(self) -> str:
        return f"{self.path}: {self.value!r}: {self.allowed}"


class NotSeen(Problem):
    """An address that could not be checked from this machine, while another machine may have the credentials."""


def _encodable(path: str) -> str:
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        allowed = f"a name that this machine's locale can encode ({sys.getfilesystemencoding()}); or set PYTHONUTF8=1"
        raise ValueError(allowed) from error
    return path


_ENCODABLE = AfterValidator(_encodable)
# A file or folder, maybe on another machine, or an address
PathText = Annotated[str, _ENCODABLE]

T = TypeVar("T")
_BY_BATON = object()
# A field that only Baton sets, and a recipe may not
ByBaton = Annotated[T, _BY_BATON]


class Spec(BaseModel):
    """A typed, closed part of a recipe. Unknown fields are errors, and no value is converted to another type, except an
    int to a float."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())

    def problems(self) -> list[Problem]:
        """Return the problems that span several fields, with paths relative to this spec."""
        return []

    def paths(self) -> Iterator[tuple[str, str]]:
        """Yield (field, text) of each PathText of this spec, without those of specs within it."""
        for name, field in type(self).model_fields.items():
            if _holds_paths(field.annotation, field.metadata) and (value := getattr(self, name)) is not None:
                several = {f"{name}.{number}": text for number, text in enumerate(value)}
                yield from (several if isinstance(value, list) else {name: value}).items()

    def smoke(self) -> dict[str, Any]:
        """Return the fields that a smoke run changes, so that it takes a few steps, and their values in it."""
        return {}

    def unused(self, names: Iterable[str], allowed: str) -> list[Problem]:
        """Return problems for those of these fields that differ from their defaults, since they would have no
        effect."""
        defaults = {name: type(self).model_fields[name].get_default(call_default_factory=True) for name in names}
        given = {name: getattr(self, name) for name in defaults}
        return [Problem(name, value, allowed) for name, value in given.items() if value != defaults[name]]

    def filled_in_problems(self) -> Iterator[Problem]:
        """Yield problems for fields that are given although Baton fills them in, including those of specs within this
        one."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if is_by_baton(field):
                if value != field.get_default(call_default_factory=True):
                    yield Problem(name, value, f"unset: {field.description}")
                continue
            for key, inner in _items(name, value):
                if isinstance(inner, Spec):
                    yield from (problem.under(key) for problem in inner.filled_in_problems())

    def _not_identity(self) -> set[str]:
        """Return the fields that define how a result is reached, not what it is."""
        return {
            name
            for name, field in type(self).model_fields.items()
            if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("identity") is False
        }

    def _unset(self) -> set[str]:
        """Return the fields of `identity_if_set` that have their default."""
        return {
            name
            for name, field in type(self).model_fields.items()
            if isinstance(field.json_schema_extra, dict)
            and field.json_schema_extra.get("identity") == "if set"
            and _same(getattr(self, name), field.get_default(call_default_factory=True))
        }

    def _parts(self) -> "dict[str, Spec | list[Spec] | dict[str, Spec]]":
        """Return the fields of the identity that are specs, or lists or mappings of specs."""
        left_out = self._not_identity() | self._unset()
        values = {name: getattr(self, name) for name in type(self).model_fields if name not in left_out}
        return {name: value for name, value in values.items() if _is_of_specs(value)}

    def identity(self) -> dict[str, Any]:
        """Return the fields that determine the result, as JSON types."""
        dumped = self.model_dump(mode="json", exclude=self._not_identity() | self._unset())
        return dumped | self._contents() | {name: _identity(part) for name, part in self._parts().items()}

    def _contents(self) -> dict[str, Any]:
        """Return the addresses of the identity that contain a digest, reduced to that digest, since the place of the
        content does not count."""
        values = {name: getattr(self, name) for name in type(self).model_fields.keys() - self._not_identity()}
        contents = {name: _content(value) for name, value in values.items()}
        return {name: content for name, content in contents.items() if content != values[name]}

    def pinned(self) -> Self:
        """Return a copy with the present state of the files and functions that the spec names, so that a change in them
        changes the cache key. Raises UserError."""
        resolved = {name: _pinned(value) for name, value in self}
        changed = {name: value for name, value in resolved.items() if value is not getattr(self, name)}
        return self.model_copy(update=changed) if changed else self

    def split_options(self) -> tuple[Self, dict[str, Any]]:
        """Split the spec into a copy with only the fields of its identity, and all others at their defaults, and the
        values of these others as JSON types. `with_options` is the inverse."""
        options = self.model_dump(mode="json", include=self._not_identity(), exclude_defaults=True)
        identity: dict[str, Any] = {name: type(self).model_fields[name].get_default() for name in options}
        for name, content in self._contents().items():
            identity[name], options[name] = content, getattr(self, name)
        for name, part in self._parts().items():
            if isinstance(part, Spec):
                inner, rest = part.split_options()
                if rest:
                    identity[name], options[name] = inner, rest
            elif isinstance(part, dict):
                divided = {key: each.split_options() for key, each in part.items()}
                if any(rest for _, rest in divided.values()):
                    identity[name] = {key: inner for key, (inner, _) in divided.items()}
                    options[name] = {key: rest for key, (_, rest) in divided.items()}
            else:
                items = [each.split_options() for each in part]
                if any(rest for _, rest in items):
                    identity[name], options[name] = [inner for inner, _ in items], [rest for _, rest in items]
        return self.model_copy(update=identity), options

    def with_options(self, options: dict[str, Any]) -> Self:
        """Return the spec that `split_options` split."""
        inner: dict[str, Any] = {}
        for name, part in self._parts().items():
            if name in options and isinstance(part, Spec):
                inner[name] = part.with_options(options[name])
            elif name in options and isinstance(part, dict):
                inner[name] = {key: each.with_options(options[name].get(key, {})) for key, each in part.items()}
            elif name in options and isinstance(part, list):
                inner[name] = [each.with_options(rest) for each, rest in zip(part, options[name], strict=True)]
        return type(self).model_validate(self.model_dump(mode="json") | options | inner)


def is_by_baton(field: FieldInfo) -> bool:
    """Return whether only Baton sets a field, and a recipe may not."""
    return _BY_BATON in field.metadata


def not_identity(default: Any, description: str, **bounds: Any) -> Any:
    """Return a field that defines how a result is reached, not what it is, and so is in no cache key and no digest."""
    return Field(default, description=description, json_schema_extra={"identity": False}, **bounds)


def identity_if_set(default: Any, description: str, **bounds: Any) -> Any:
    """Return a field that is in the identity unless it has its default. It is for fields that were added when results
    existed, which must stay valid."""
    return Field(default, description=description, json_schema_extra={"identity": "if set"}, **bounds)


class StageSpec(Spec):
    """The spec of a stage."""

    section: ClassVar[str] = ""  # section of a recipe; "" for a field of Recipe
    nodes_field: ClassVar[str] = ""  # field with the number of machines, such as layout.nodes; "": always one
    devices_field: ClassVar[str] = ""  # field with the number of accelerators on each machine; "": always one
    exact_devices: ClassVar[bool] = False  # whether its placement's machines have exactly this number, even if it is 1
    spread_by: ClassVar[str] = ""  # text that names its layout's fields to use several devices; "": no layout
    uses_gpus: ClassVar[bool] = False  # whether it uses GPUs where there are any
    estimate: ClassVar[str] = ""  # "module:function" that estimates its needs (tasks/hardware/need.py); "": little

    placement: Placement | None = not_identity(None, "Where the stage runs, if not on this machine")
    pod: PodSpec | None = not_identity(None, "Resources that its pod on a Flyte cluster requests")

    def nodes(self) -> int:
        """Return the number of machines that the stage runs on."""
        return _number(self, self.nodes_field)

    def nodes_fields(self) -> str:
        """Return the fields with the number of machines, as text."""
        return self.nodes_field

    def shared_folder_for(self) -> str:
        """Return the field whose machines work through files in a shared folder, or "" if there is one machine or they
        need no such folder."""
        return "" if self.spread_by or self.nodes() == 1 else self.nodes_field

    def processes_each(self) -> int:
        """Return the number of the engine's processes on each machine."""
        return _number(self, self.devices_field)

    def devices(self) -> int:
        """Return the number of accelerators that the stage uses on each machine, where it uses any."""
        return self.processes_each()

    def devices_fields(self) -> str:
        """Return the fields with the number of accelerators, as text."""
        return self.devices_field

    def device(self) -> str | None:
        """Return the accelerator that the layout is for, or None for that of the machine."""
        return None

    def uses_vllm(self) -> bool:
        """Return whether the stage opens the model with vLLM."""
        return False

    def cpu_cache(self) -> int:
        """Return the GiB of vLLM's KV cache on a CPU."""
        return 1

    def sequence_lengths(self) -> dict[str, int]:
        """Return the maximum lengths in tokens of the sequences that the model gets, by the field that sets them."""
        return {}

    def expected_hours(self) -> float | None:
        """Return the hours that the recipe expects on any machine, or None if they are estimated or unknown."""
        return None

    def memory(self) -> int:
        """Return the bytes of memory that the stage needs with any model; 0 if they are few."""
        return 0

    def memory_text(self) -> str:
        """Return the same as text, with what it depends on."""
        return ""

    def plan_lines(self, parameters: int, active: int) -> dict[str, str]:
        """Return lines for the plan beside the estimate, by title. `active`: number of parameters that a token uses."""
        return {}

    def trained_on(self) -> str:
        """Return the name of the set of rows that the stage trains on, or "" if there is none."""
        return ""

    def epochs(self, rows: int, kind: str) -> float | str:
        """Return how often all steps go over `rows` rows of that set, or the reason why this is unknown before the run.
        `kind`: the rows' kind; empty if it is unknown."""
        return 0.0

    def by_path(self) -> Mapping[str, Any]:
        """Return the sources of text or rows that the stage reads, by field."""
        return {}

    def existing_models(self) -> dict[str, str]:
        """Return the models or tokenizers that the stage reads, by field: folders, addresses, or names on the hub."""
        return {}

    def sent(self, storage: str) -> Self:
        """Return a copy for a machine that lacks this machine's files, after uploading them to the storage. Raises
        StorageError."""
        return self


def _number(spec: Spec, field: str) -> int:
    """Return the value of a field, or 1 if there is no field."""
    return int(attrgetter(field)(spec)) if field else 1


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value with its path, or each item of a list or mapping with its own path."""
    several = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    yield from ((f"{name}.{key}", item) for key, item in several) if several is not None else [(name, value)]


def _is_of_specs(value: Any) -> bool:
    """Return whether a value is a spec, or a list or a mapping of specs only."""
    items = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return bool(items) and all(isinstance(item, Spec) for item in items)


def _identity(part: Spec | list[Spec] | dict[str, Spec]) -> Any:
    if isinstance(part, Spec):
        return part.identity()
    if isinstance(part, dict):
        return {key: each.identity() for key, each in part.items()}
    return [each.identity() for each in part]


def _same(value: Any, default: Any) -> bool:
    """Return whether both values give the same result."""
    if isinstance(value, Spec) and isinstance(default, Spec):
        return value.identity() == default.identity()
    return bool(value == default)


def _content(value: Any) -> Any:
    """Reduce an address, or each address in a list, to its digest if it contains one."""
    if isinstance(value, str):
        return f"{DIGEST}{digest}" if (digest := digest_of(value)) else value
    return [_content(item) if isinstance(item, str) else item for item in value] if isinstance(value, list) else value


def _holds_paths(annotation: Any, metadata: Sequence[Any]) -> bool:
    """Return whether an annotation is PathText, or an option or a list of it."""
    of_list = getattr(annotation, "__metadata__", ())
    return _ENCODABLE in (*metadata, *of_list) or any(_holds_paths(inner, ()) for inner in get_args(annotation))


def _pinned(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.pinned()
    if isinstance(value, dict):
        return {name: _pinned(item) for name, item in value.items()}
    return [_pinned(item) for item in value] if isinstance(value, list) else value
