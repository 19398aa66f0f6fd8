"""The base class of every spec, and the problems it reports.

A spec defines *what the result is*. pydantic checks field types and bounds; `problems()` returns what spans several
fields, so that everything is reported at once (a pydantic model validator does not run while any field is invalid).
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from infra.placement.config import Placement
from infra.pod_spec import PodSpec
from infra.storage.address import DIGEST, digest_of


@dataclass(frozen=True)
class Problem:
    """One problem in a recipe, as an actionable message."""

    path: str  # "pretrain.model.heads"
    value: Any  # what was given
    allowed: str  # what would be accepted, or how to fix it

    def under(self, prefix: str) -> "Problem":
        """The same problem, seen from one level up."""
        return replace(self, path=f"{prefix}.{self.path}" if self.path else prefix)

    def __str__(self) -> str:
        return f"{self.path}: {self.value!r}: {self.allowed}"


class NotSeen(Problem):
    """An address that could not be checked from this machine; another may have the credentials for it."""


def _encodable(path: str) -> str:
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        allowed = f"a name that this machine's locale can encode ({sys.getfilesystemencoding()}); or set PYTHONUTF8=1"
        raise ValueError(allowed) from error
    return path


_ENCODABLE = AfterValidator(_encodable)
# a file or folder, maybe on another machine; or an address
PathText = Annotated[str, _ENCODABLE]

T = TypeVar("T")
_BY_BATON = object()
# a field that only Baton sets: a recipe may not give it
ByBaton = Annotated[T, _BY_BATON]


class Spec(BaseModel):
    """A typed, closed part of a recipe: unknown fields are errors, and no value is converted to another type, except
    an int to a float."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())

    def problems(self) -> list[Problem]:
        """The problems that span several fields, with paths relative to this spec."""
        return []

    def paths(self) -> Iterator[tuple[str, str]]:
        """(field, text) of each PathText that it has itself, not in a spec within it."""
        for name, field in type(self).model_fields.items():
            if _holds_paths(field.annotation, field.metadata) and (value := getattr(self, name)) is not None:
                several = {f"{name}.{number}": text for number, text in enumerate(value)}
                yield from (several if isinstance(value, list) else {name: value}).items()

    def unused(self, names: Iterable[str], allowed: str) -> list[Problem]:
        """The problems of fields that would have no effect: of these, those that do not have their default."""
        defaults = {name: type(self).model_fields[name].get_default(call_default_factory=True) for name in names}
        given = {name: getattr(self, name) for name in defaults}
        return [Problem(name, value, allowed) for name, value in given.items() if value != defaults[name]]

    def filled_in_problems(self) -> Iterator[Problem]:
        """The problems of fields, also in specs within it, that are given, although Baton fills them in."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if _BY_BATON in field.metadata:
                if value != field.get_default(call_default_factory=True):
                    yield Problem(name, value, f"unset: {field.description}")
                continue
            for key, inner in _items(name, value):
                if isinstance(inner, Spec):
                    yield from (problem.under(key) for problem in inner.filled_in_problems())

    def _not_identity(self) -> set[str]:
        """The fields that say how a result is reached, not what it is."""
        return {
            name
            for name, field in type(self).model_fields.items()
            if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("identity") is False
        }

    def _unset(self) -> set[str]:
        """The fields of `identity_if_set` that have their default."""
        return {
            name
            for name, field in type(self).model_fields.items()
            if isinstance(field.json_schema_extra, dict)
            and field.json_schema_extra.get("identity") == "if set"
            and _same(getattr(self, name), field.get_default(call_default_factory=True))
        }

    def _parts(self) -> "dict[str, Spec | list[Spec] | dict[str, Spec]]":
        """The fields of its identity that are specs themselves, or lists or mappings of specs."""
        left_out = self._not_identity() | self._unset()
        values = {name: getattr(self, name) for name in type(self).model_fields if name not in left_out}
        return {name: value for name, value in values.items() if _is_of_specs(value)}

    def identity(self) -> dict[str, Any]:
        """The fields that determine the result, as JSON types."""
        whole = self.model_dump(mode="json", exclude=self._not_identity() | self._unset())
        return whole | self._contents() | {name: _identity(part) for name, part in self._parts().items()}

    def _contents(self) -> dict[str, Any]:
        """The addresses of its identity that carry a digest, reduced to that digest: where the content is does not
        count."""
        values = {name: getattr(self, name) for name in type(self).model_fields.keys() - self._not_identity()}
        contents = {name: _content(value) for name, value in values.items()}
        return {name: content for name, content in contents.items() if content != values[name]}

    def pinned(self) -> Self:
        """A copy with the present state of the files and functions that it names, so that a change in one changes the
        cache key. Raises UserError."""
        resolved = {name: _pinned(value) for name, value in self}
        changed = {name: value for name, value in resolved.items() if value is not getattr(self, name)}
        return self.model_copy(update=changed) if changed else self

    def split_options(self) -> tuple[Self, dict[str, Any]]:
        """Split it: a copy with only the fields of its identity, all others at their defaults; and those others, as
        JSON types. `with_options` is the inverse."""
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
        return self.model_copy(update=identity), options

    def with_options(self, options: dict[str, Any]) -> Self:
        """The spec that `split_options` split."""
        inner: dict[str, Any] = {}
        for name, part in self._parts().items():
            if name in options and isinstance(part, Spec):
                inner[name] = part.with_options(options[name])
            elif name in options and isinstance(part, dict):
                inner[name] = {key: each.with_options(options[name].get(key, {})) for key, each in part.items()}
        return type(self).model_validate(self.model_dump(mode="json") | options | inner)


def not_identity(default: Any, description: str, **bounds: Any) -> Any:
    """A field that says how a result is reached, not what it is: it enters no cache key and no digest."""
    return Field(default, description=description, json_schema_extra={"identity": False}, **bounds)


def identity_if_set(default: Any, description: str, **bounds: Any) -> Any:
    """A field that is in the identity unless it has its default: added after results existed, which it must not make
    anew."""
    return Field(default, description=description, json_schema_extra={"identity": "if set"}, **bounds)


class StageSpec(Spec):
    """The spec of a whole stage."""

    section: ClassVar[str] = ""  # of a recipe that it is; "": a field of Recipe has it (workflows/recipe/__init__.py)
    nodes_field: ClassVar[str] = ""  # with the number of machines, such as layout.nodes; "": always one
    devices_field: ClassVar[str] = ""  # with the number of accelerators on each; "": always one
    exact_devices: ClassVar[bool] = False  # its placement's machines have exactly these, even if it is one
    spread_by: ClassVar[str] = ""  # fields of its layout that make it use more of them, in words; "": no layout
    uses_gpus: ClassVar[bool] = False  # where there are any
    estimate: ClassVar[str] = ""  # "module:function" that estimates what it needs (tasks/hardware/need.py); "": little

    placement: Placement | None = not_identity(None, "Where the stage runs, if not on this machine")
    pod: PodSpec | None = not_identity(None, "What its pod on a Flyte cluster asks for")

    def nodes(self) -> int:
        """The machines that the stage runs on."""
        return _number(self, self.nodes_field)

    def nodes_fields(self) -> str:
        """The fields that say on how many."""
        return self.nodes_field

    def shared_folder_for(self) -> str:
        """The field whose machines work through files in a folder that they share; "": it is one, or they need none."""
        return "" if self.spread_by or self.nodes() == 1 else self.nodes_field

    def processes_each(self) -> int:
        """Processes of its engine on each machine."""
        return _number(self, self.devices_field)

    def devices(self) -> int:
        """Accelerators that it uses on each machine, where it uses any."""
        return self.processes_each()

    def devices_fields(self) -> str:
        """The fields that say how many."""
        return self.devices_field

    def device(self) -> str | None:
        """The accelerator that its layout is for; None: the machine's."""
        return None

    def uses_vllm(self) -> bool:
        """Whether the stage opens the model with vLLM."""
        return False

    def cpu_cache(self) -> int:
        """GiB of vLLM's KV cache on a CPU."""
        return 1

    def sequence_lengths(self) -> dict[str, int]:
        """Maximum lengths in tokens of the sequences that the model gets, by the field that sets them."""
        return {}

    def expected_hours(self) -> float | None:
        """Hours that it takes on any machine, as the recipe says; None: they are estimated, or not known."""
        return None

    def memory(self) -> int:
        """Bytes of memory that it takes whatever the model is; 0: little."""
        return 0

    def memory_text(self) -> str:
        """The same in words, with what it depends on."""
        return ""

    def plan_lines(self, parameters: int, active: int) -> dict[str, str]:
        """What the plan says of it beside the estimate, by title. `active`: parameters that a token uses."""
        return {}

    def trained_on(self) -> str:
        """The name of the set of rows that it is trained on; "": none."""
        return ""

    def epochs(self, rows: int, kind: str) -> float | str:
        """How often all steps go over so many rows of that set, or why that is not known before the run. `kind`: that
        of its rows; empty if that is not known."""
        return 0.0

    def by_path(self) -> Mapping[str, Any]:
        """The sources of text or rows that it reads, by field."""
        return {}

    def existing_models(self) -> dict[str, str]:
        """The models or tokenizers that it reads, by field: folders, addresses, or names of the hub."""
        return {}

    def sent(self, storage: str) -> Self:
        """A copy for a machine that lacks this machine's files: they are uploaded to the storage. Raises
        StorageError."""
        return self


def _number(spec: Spec, field: str) -> int:
    """The value of a field; 1 if there is none."""
    return int(attrgetter(field)(spec)) if field else 1


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value with its path; of a list or mapping, each item with its own."""
    several = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    yield from ((f"{name}.{key}", item) for key, item in several) if several is not None else [(name, value)]


def _is_of_specs(value: Any) -> bool:
    """Whether it is a spec, or a list or a mapping of nothing but specs."""
    items = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return bool(items) and all(isinstance(item, Spec) for item in items)


def _identity(part: Spec | list[Spec] | dict[str, Spec]) -> Any:
    if isinstance(part, Spec):
        return part.identity()
    if isinstance(part, dict):
        return {key: each.identity() for key, each in part.items()}
    return [each.identity() for each in part]


def _same(value: Any, default: Any) -> bool:
    """Whether they give the same result."""
    if isinstance(value, Spec) and isinstance(default, Spec):
        return value.identity() == default.identity()
    return bool(value == default)


def _content(value: Any) -> Any:
    """An address, or those in a list, reduced to its digest if it carries one."""
    if isinstance(value, str):
        return f"{DIGEST}{digest}" if (digest := digest_of(value)) else value
    return [_content(item) if isinstance(item, str) else item for item in value] if isinstance(value, list) else value


def _holds_paths(annotation: Any, metadata: Sequence[Any]) -> bool:
    """Whether it is PathText, or an option or a list of it."""
    of_list = getattr(annotation, "__metadata__", ())
    return _ENCODABLE in (*metadata, *of_list) or any(_holds_paths(inner, ()) for inner in get_args(annotation))


def _pinned(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.pinned()
    if isinstance(value, dict):
        return {name: _pinned(item) for name, item in value.items()}
    return [_pinned(item) for item in value] if isinstance(value, list) else value
