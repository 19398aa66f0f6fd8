"""Every field of a recipe, with its default, its bounds and what it means. The sections from `grow` on are for
workflows/continuous.py.

python -m workflows.describe             all sections
python -m workflows.describe pretrain    one section
python -m workflows.describe --json-schema > workflows/recipes/schema.json    for editors
"""

import builtins
import json
import sys
import types
from typing import Any, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tasks.data.source_spec import (
    FilesSource,
    FunctionSource,
    HuggingFaceSource,
    JsonlSource,
    ParquetSource,
    StdlibSource,
)
from workflows.continuous_recipe import SECTIONS, ContinuousRecipe

SOURCES = (StdlibSource, FilesSource, JsonlSource, ParquetSource, HuggingFaceSource, FunctionSource)
SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}
FILLED_IN = "filled in by Baton"  # fields that no one writes


def main(names: list[str]) -> int:
    if names == ["--json-schema"]:
        print(json.dumps(schema()))
        return 0
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        print(f"no such section: {', '.join(unknown)}; there are: {', '.join(SECTIONS)}", file=sys.stderr)
        return 2
    for name in names or SECTIONS:
        field = ContinuousRecipe.model_fields[name]
        print(f"{name}:  # {field.description}")
        match get_origin(field.annotation):
            case builtins.dict:
                print("  <name>:")
                _print_fields(SECTIONS[name], "    ")
            case builtins.list:
                print("  -")
                _print_fields(SECTIONS[name], "    ")
            case _:
                _print_fields(SECTIONS[name], "  ")
        print()
    return 0


def schema() -> dict[str, Any]:
    """JSON schema of every recipe: an ordinary one may leave out what a continuous one needs."""
    found = ContinuousRecipe.model_json_schema()
    return {name: part for name, part in found.items() if name != "required"}


def _print_fields(model: type[BaseModel], indent: str) -> None:
    for name, field in model.model_fields.items():
        if name == "kind" or FILLED_IN in (field.description or ""):
            continue
        if nested := _nested(field):
            optional = field.default is None
            print(f"{indent}{name}:{' null' if optional else ''}  # {field.description}")
            _print_fields(nested, indent + ("  # " if optional else "  "))
            continue
        print(f"{indent}{name}: {_default(field)}  # {'; '.join(filter(None, [field.description, _bounds(field)]))}")
        if model.__name__ == "CorpusSpec" and name == "source":
            for source in SOURCES:
                print(f"{indent}  # kind: {source.model_fields['kind'].default} - {(source.__doc__ or '').strip()}")
                _print_fields(source, indent + "  #   ")

    if model.model_config.get("extra") == "allow":
        (_, of_any_name) = get_args(get_type_hints(model)["__pydantic_extra__"])
        print(f"{indent}<name>:  # {(of_any_name.__doc__ or '').strip()}")
        _print_fields(of_any_name, indent + "  ")


def _nested(field: FieldInfo) -> type[BaseModel] | None:
    """The spec that a field is, or may be in place of null."""
    union = get_args(field.annotation) if get_origin(field.annotation) is types.UnionType else (field.annotation,)
    (kind, *more) = [option for option in union if option is not type(None)]
    return kind if not more and isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "(required)"
    default = field.default.model_dump(exclude_none=True) if isinstance(field.default, BaseModel) else field.default
    return json.dumps(default)  # YAML reads JSON


def _bounds(field: FieldInfo) -> str:
    options = [str(option) for option in get_args(field.annotation) if isinstance(option, str)]
    signs = [f"{SIGNS[type(item)]} {_limit(item)}" for item in field.metadata if type(item) in SIGNS]
    return " | ".join(options) if len(options) > 1 else ", ".join(signs)


def _limit(item: Any) -> Any:
    return next(value for name in ("ge", "gt", "le", "lt") if (value := getattr(item, name, None)) is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
