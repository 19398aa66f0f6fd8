"""Format the problems of a recipe: each with its path, value, what is allowed, and a way out."""

import difflib
import re
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from baton.infra.commands import command
from baton.infra.errors import UserError
from baton.infra.text import escaped
from baton.infra.tracking.redact import HIDDEN, redact
from baton.tasks.core.spec import Problem, is_by_baton
from baton.workflows.recipe.synonyms import proposal

_SECRET_PATH = re.compile(r"\.placement\.secrets\.\d+$")
_NAME = re.compile(r"[A-Za-z_]\w{0,99}")

# fields of earlier versions
RENAMED = {
    "fewest_steps": "min_steps",
    "most_steps": "max_steps",
    "smallest": "min_bytes",
    "at_most_dropped": "max_dropped",
    "least": "min_score",
    "micro_batch_size": "layout.micro_batch",
}
NO_MAPPING = ("model_type", "dict_type", "model_attributes_type")  # pydantic's errors for other values than a mapping
UNTAGGED = ("union_tag_not_found", "union_tag_invalid")  # and for a mapping whose `kind` is missing or unknown
MOST_SHOWN = 100  # problems
LONGEST = 1000  # characters of what is allowed
NOT_CHECKED = "  once the values are correct, checks of several sections follow: models, rows, rewards, memory, cost"


class RecipeError(UserError):
    """A recipe cannot run; no stage was started. It ends `pyflyte run` with exit code 2."""

    exit_code = 2

    def __init__(
        self,
        problems: list[Problem],
        recipe: BaseModel | None = None,
        wrong: Collection[str] = (),
        lines: Mapping[str, int] | None = None,
    ) -> None:
        """`recipe`: the recipe without the fields that are unknown or have a wrong value, or None if it needs them.
        `wrong`: its sections with a wrong value. `lines`: the file's line numbers by path."""
        self.problems, self.recipe, self.wrong, self.lines = problems, recipe, wrong, lines or {}
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        shown = [
            f"  {_cut(problem.path)}: {_short(problem)}{_line_of(problem.path, self.lines)}\n"
            f"      {_cut(problem.allowed, LONGEST)}"
            for problem in problems[:MOST_SHOWN]
        ]
        more = [f"  and {len(problems) - MOST_SHOWN} more"] if len(problems) > MOST_SHOWN else []
        more += [NOT_CHECKED] if wrong else []
        super().__init__("\n".join([f"the recipe has {count}; no stage was started", *shown, *more]))


def first_of_each(*steps: Iterable[Problem]) -> list[Problem]:
    """The problems of several steps, without those of fields that an earlier step reports."""
    problems: list[Problem] = []
    for step in steps:
        reported = {problem.path for problem in problems}
        problems += [problem for problem in step if problem.path not in reported]
    return problems


def problems_from(error: ValidationError, model: type[BaseModel], raw: Any) -> list[Problem]:
    """Convert pydantic's errors, with paths as in the YAML."""
    problems = []
    for item in error.errors(include_url=False):
        path, parent = locate(item["loc"], model, raw)
        value = "(not given)" if item["type"] == "missing" else item["input"]
        options = models_at(path, model)
        kinds = {str(tag): option for option in options if (tag := _tag(option))} if len(options) > 1 else {}
        if item["type"] in UNTAGGED and isinstance(value, Mapping):
            allowed = _kind(kinds, value.keys() - {"kind"})
            path, value = f"{path}.kind", value.get("kind", "(not given)")
        elif kinds and item["type"] in NO_MAPPING:
            allowed = f"a mapping of fields with `kind`, {_kind(kinds)}"
        elif item["type"] == "extra_forbidden":
            allowed = _known_fields(path.rpartition(".")[2], parent)
        elif item["type"] == "missing":
            allowed = "is required"
        elif item["type"] in NO_MAPPING:
            allowed = _section(path, options)
        elif item["type"] == "string_pattern_mismatch" and (field := _field(path, parent)):
            allowed = f"{field.description}; the pattern is {item['ctx']['pattern']}"
        else:
            message = item["msg"].removeprefix("Value error, ")
            allowed = message[0].lower() + message[1:]
        problems.append(Problem(path or "recipe", value, allowed))
    return problems


def models_at(path: str, model: type[BaseModel]) -> list[type[BaseModel]]:
    """The models that may be the value of a field, given by its path as in the YAML."""
    annotation: Any = model
    for part in filter(None, path.split(".")):
        fields = [each.model_fields[part].annotation for each in models_in(annotation) if part in each.model_fields]
        annotation = _items(annotation) or (fields[0] if fields else None)
    return [] if _items(annotation) else models_in(annotation)


def _items(annotation: Any) -> Any:
    """The type of a list's items or a dictionary's values; None for other types."""
    if typing.get_origin(annotation) in (list, dict):
        return typing.get_args(annotation)[-1]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated):
        return next(filter(None, map(_items, typing.get_args(annotation))), None)
    return None


def _kind(kinds: Mapping[str, type[BaseModel]], given: Collection[str] = ()) -> str:
    """The allowed values of the field `kind`. `given`: the names of the fields beside it."""
    fits = [kind for kind, model in kinds.items() if set(given) <= model.model_fields.keys()] if given else []
    named = f"; of these, {', '.join(fits)} have the given fields" if 0 < len(fits) < len(kinds) else ""
    return f"one of {', '.join(kinds)}{named}"


def _field(path: str, parent: type[BaseModel] | None) -> FieldInfo | None:
    return parent.model_fields.get(path.rpartition(".")[2]) if parent else None


def _section(path: str, options: list[type[BaseModel]]) -> str:
    """The allowed values of a section, which may be one of several models, or of the recipe itself."""
    if not path:
        return "a mapping of sections, such as `corpus:` and `pretrain:`"
    name = path.rpartition(".")[2]
    required = any(field.is_required() for option in options for field in option.model_fields.values())
    defaults = "" if name.isdigit() or required else f": write `{name}: {{}}` for the defaults"
    fields = f"a mapping of fields{defaults}"
    return f"{fields}; `{command('baton describe')}` lists them"


def locate(location: tuple[int | str, ...], model: type[BaseModel], raw: Any) -> tuple[str, type[BaseModel] | None]:
    """The field's path as written in the YAML, and its parent's model. A location also contains the tags of unions,
    which are not fields."""
    parts: list[str] = []
    parent: type[BaseModel] | None = model
    options: list[type[BaseModel]] = []
    by_key = False  # the next part is a key of a dictionary whose values are of type `parent`
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(part, int) or by_key:  # an item of a list or dictionary; `parent` is already its type
            by_key = False
            parts.append(str(part))
            items: Any = raw if isinstance(raw, list | dict) else {part: None}
            raw = items[part]
            continue
        field = parent.model_fields.get(str(part)) if parent else None
        annotation = (
            field.annotation if field else _extra_type(parent) if isinstance(raw, dict) and part in raw else None
        )
        if annotation is None and not last:  # a union's tag selects the model
            parent = next((option for option in options if _tag(option) == part), parent) if parts else parent
            continue
        if field is None and last and not isinstance(raw, dict):
            continue
        parts.append(str(part))
        raw = raw.get(part) if isinstance(raw, dict) else None
        if not last:
            options, by_key = models_in(annotation), typing.get_origin(annotation) is dict
            parent = options[0] if options else None
    return ".".join(parts), parent


def _extra_type(model: type[BaseModel] | None) -> Any:
    """The type of a model's extra fields; None if it allows none."""
    if model is None or model.model_config.get("extra") != "allow":
        return None
    return typing.get_args(typing.get_type_hints(model)["__pydantic_extra__"])[1]


def models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, typing.Annotated, list, dict):
        return [model for option in typing.get_args(annotation) for model in models_in(option)]
    return []


def _tag(model: type[BaseModel]) -> Any:
    return model.model_fields["kind"].default if "kind" in model.model_fields else None


def _known_fields(name: str, model: type[BaseModel] | None) -> str:
    if model is None:
        return "unknown field"
    if (new := RENAMED.get(name, "")).partition(".")[0] in model.model_fields:
        return f"is called {new} now"
    known = [field for field, info in model.model_fields.items() if not is_by_baton(info)]
    if proposed := proposal(name, known):
        return f"unknown field; {proposed}"
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown field; {hint}known: {', '.join(known)}"


def _line_of(path: str, lines: Mapping[str, int]) -> str:
    """The line of the field or of its nearest parent that has one: a missing field has none."""
    while path and path not in lines:
        path = path.rpartition(".")[0]
    return f" (line {lines[path]})" if path else ""


def shown(problem: Problem) -> Any:
    """The value, without secrets."""
    is_secret = _SECRET_PATH.search(problem.path) and not _NAME.fullmatch(str(problem.value))  # not a variable's name
    if is_secret or problem.path.endswith(".placement.setup"):
        return HIDDEN
    return redact(problem.value, problem.path.rpartition(".")[2])


def _short(problem: Problem) -> str:
    if problem.value in ("(not given)", "(twice)", HIDDEN):
        return str(problem.value)
    return _cut(repr(shown(problem)))


def _cut(text: str, limit: int = 60) -> str:
    """A text shortened, and escaped where a terminal can't print it."""
    text = escaped(text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"
