"""Every field of a recipe, with its default, its bounds and its meaning. The sections from `grow` on are for
workflows/continuous.py.

baton describe             all sections
baton describe pretrain    one section, field (pretrain.model), method (sft) or stage (evaluate-base)
baton describe --markdown > docs/reference/recipe.md
baton describe --json-schema > workflows/recipes/schema.json
baton describe --json          the stages, with what each takes and makes
"""

import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, get_args, get_origin, get_type_hints

import click
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from baton.infra.flyte.options import OPTIONS
from baton.infra.placement.config import Placement
from baton.infra.pod_spec import PodSpec
from baton.tasks.data.curate_spec import CurateStep
from baton.tasks.data.spec import CorpusSpec
from baton.tasks.posttrain.methods import METHODS
from baton.tasks.rewards.spec import RewardSpec
from baton.workflows.continuous_training.recipe import SECTIONS, ContinuousRecipe
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import models_in

SOURCES: tuple[type[BaseModel], ...] = get_args(CorpusSpec.model_fields["source"].annotation)
FIELDS = ContinuousRecipe.model_fields | Recipe.model_fields  # an ordinary recipe's where both have one
SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}
FILLED_IN = "filled in by Baton"  # fields that are not for users
# models that many sections share: the reference has them once, under these headings
SHARED: dict[str, type[BaseModel]] = {"placement": Placement, "pod": PodSpec, "rewards": RewardSpec}
TABLE = "| field | default | values | meaning |\n|---|---|---|---|"
INTRODUCTION = """\
# Recipe fields

<!-- Generated: baton describe --markdown > docs/reference/recipe.md -->

A recipe is one YAML file made of these fields and sections; a section that is left out is a stage that does not run.
`grow`, `promotion`, `refresh` and `schedule` are for [continuous training](../continuous.md)."""


# names of stages in a plan, the terminal and Flyte's console that differ from the recipe's
STAGES = {
    "corpus": (
        "compact",
        "find_new",
        "gather",
        "increment",
        "prepare_clean_corpus",
        "prepare_corpus",
        "read_partitions",
    ),
    "data": ("prepare_rows", "rows"),
    "init_from": ("import_hf",),
    "promotion": ("decide", "promote"),
    "publish": ("choose",),
    "rewards": ("check_rewards",),
    "shards": ("encode_partitions", "tokenize"),
    "stages": ("custom_artifact", "custom_model"),
    "start_from": ("load_hf",),
    "tokenizer": ("train_tokenizer",),
}
SAME = {name: section for section, names in STAGES.items() for name in names}
SAME |= {name: f"post_training.{name}" for name in METHODS}
WITHOUT_FIELDS = ("decontaminate", "report")


@dataclass(frozen=True)
class Part:
    """A part of a recipe: its path, and its field, or the model that many sections share."""

    path: str
    field: FieldInfo | type[BaseModel]


class PartName(click.ParamType):
    """The name of a section, field, method or stage."""

    name = "section"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Part:
        if isinstance(value, Part):
            return value
        title = str(value).partition("-")[0]  # before the name of a set, a model or a seed
        if title in WITHOUT_FIELDS:
            self.fail(f"{value!r}: this stage has no fields in a recipe", param, ctx)
        part = find(str(value)) or find(title) or find(str(value).lower())
        if part is None:
            known = [*FIELDS, *METHODS, *SHARED]
            near = get_close_matches(str(value), [*dict.fromkeys([*known, *SAME])], n=3)
            close = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            self.fail(f"{value!r} is no section, field, method or stage of a recipe; {close}", param, ctx)
        return part


def find(name: str) -> Part | None:
    """The part of a recipe that a path or a stage's name means."""
    first, *rest = name.split(".")
    first, *within = SAME.get(first, first).split(".")
    words = [*within, *rest]
    if first in SHARED and not words:
        return Part(first, SHARED[first])
    if first not in FIELDS | SHARED:
        return None
    path, field, named = first, FIELDS.get(first) or FieldInfo(annotation=SHARED[first], description=""), False
    for word in words:
        models = models_in(field.annotation)
        fields = {known: each for model in models for known, each in model.model_fields.items()}
        if word in fields:
            kinds = _kinds(models) if word == "kind" else None
            path, field, named = f"{path}{_container(field)}.{word}", kinds or fields[word], False
        elif extra_models := [*filter(None, map(_extra_model, models))]:
            path, field, named = f"{path}.<name>", FieldInfo(annotation=extra_models[0], description=""), True
        elif _container(field) and not named:  # a list's number or a mapping's name
            named = True
        else:
            return None
    return Part(path, field)


def _extra_model(model: type[BaseModel]) -> type[BaseModel] | None:
    """The model of the fields whose names are the user's."""
    if model.model_config.get("extra") != "allow":
        return None
    _, extra_model = get_args(get_type_hints(model)["__pydantic_extra__"])
    return extra_model if isinstance(extra_model, type) else None


def _kinds(models: list[type[BaseModel]]) -> FieldInfo | None:
    """The field that chooses between some models."""
    kinds = [str(model.model_fields["kind"].default) for model in models]
    return FieldInfo(annotation=str, description=f"one of {', '.join(kinds)}") if len(kinds) > 1 else None


def _container(field: FieldInfo) -> str:
    origin: Any = get_origin(field.annotation)
    return {list: "[]", dict: ".<name>"}.get(origin, "")


@click.command(help=__doc__.replace("\n\n", "\n\n\b\n", 1))
@click.argument("sections", nargs=-1, type=PartName(), metavar="[SECTION]...")
@click.option("--markdown", is_flag=True, help="Print the page of the docs.")
@click.option("--json-schema", is_flag=True, help="Print the JSON schema for editors.")
@click.option("--json", "as_json", is_flag=True, help="Print the stages, with what each takes and makes.")
def main(sections: tuple[Part, ...], markdown: bool, json_schema: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps(stages(), indent=1))
        return
    if json_schema:
        print(json.dumps(schema()))
        return
    if markdown:
        print("\n\n".join([INTRODUCTION, *_markdown()]))
        return
    for part in sections or [Part(name, field) for name, field in FIELDS.items()]:
        _print_part(part)


def _print_part(part: Part) -> None:
    field = part.field
    if isinstance(field, type):
        print(f"{part.path}:  # {(field.__doc__ or '').strip()}")
        _print_fields(field, "  ")
        print()
        return
    models = [SECTIONS[part.path]] if part.path in SECTIONS else models_in(field.annotation)
    if not models or (part.path in FIELDS and part.path not in SECTIONS):
        print(f"{_line(part.path, field)}\n")
        return
    print(f"{part.path}:  # {field.description or (models[0].__doc__ or '').strip()}")
    container: Any = get_origin(field.annotation)
    above = {dict: "  <name>:", list: "  -"}.get(container)
    if above:
        print(above)
    for model in models:
        if len(models) > 1:
            print(f"  # kind: {model.model_fields['kind'].default} - {(model.__doc__ or '').strip()}")
        _print_fields(model, "    " if above else "  ")
    print()


def schema() -> dict[str, Any]:
    """JSON schema of every recipe: an ordinary one may leave out what a continuous one needs."""
    full = ContinuousRecipe.model_json_schema()
    del full["required"]
    return full | {"properties": full["properties"] | Recipe.model_json_schema()["properties"]}


def stages() -> dict[str, Any]:
    """The stages by name: the section with their fields, the inputs with their kinds, and the kind that each makes. A
    list or a dictionary of inputs has the kind of its items."""
    from baton.workflows.dag.tasks import TASKS  # imports Flyte

    found = {}
    for name, task in TASKS.items():
        takes = {title: of for title, of in task.python_interface.inputs.items() if title not in ("spec", OPTIONS)}
        (made,) = task.python_interface.outputs.values()
        kind = getattr(made, "__origin__", made)  # of an Annotated type
        section = None if name in WITHOUT_FIELDS else SAME.get(name, name)
        found[name] = {
            "section": section,
            "takes": {title: " | ".join(sorted(_kinds_of(of))) for title, of in takes.items()},
            "makes": kind.__name__,
            "about": " ".join(str(kind.__doc__).split()),
        }
    return {"stages": found, "schema": "baton describe --json-schema"}


def _kinds_of(kind: Any) -> set[str]:
    """Return the names of the artifacts in a type such as list[HFModel] or Corpus | None."""
    inner = [each for each in get_args(kind) if each is not type(None) and each is not str]
    return set().union(*map(_kinds_of, inner)) if inner else {kind.__name__}


def _markdown() -> Iterator[str]:
    """The reference's sections: a heading, a description, a table of fields."""
    yield "\n".join([TABLE, *(_row(name, field) for name, field in FIELDS.items() if name not in SECTIONS)])
    for name, model in SECTIONS.items():
        field = FIELDS[name]
        container = get_origin(field.annotation)
        path = f"{name}.<name>" if container is dict else f"{name}[]" if container is list else name
        yield f"## {name}\n\n{field.description}."
        yield from _markdown_tables(model, path)
    for name, shared in SHARED.items():
        yield f"## {name}\n\n{(shared.__doc__ or '').strip()}"
        yield from _markdown_tables(shared, f"{name}[]" if name == "rewards" else name)


def _markdown_tables(model: type[BaseModel], path: str) -> Iterator[str]:
    """A model's table, and below it those of the models nested in it."""
    nested = {}
    rows = []
    for name, field in model.model_fields.items():
        if name == "kind" or FILLED_IN in (field.description or ""):
            continue
        inner = _nested(field)
        if (shared := SHARED.get(name)) and shared in (inner, *_items(field)):
            rows.append(_row(name, field, f" ([fields](#{name}))"))
        elif inner:
            nested[f"{path}.{name}"] = inner
            rows.append(_row(name, field, " (fields below)"))
        elif model.__name__ == "CorpusSpec" and name == "curate":
            nested[f"{path}.{name}[]"] = CurateStep
            rows.append(_row(name, field, " (fields below)"))
        else:
            rows.append(_row(name, field))
        if model.__name__ == "CorpusSpec" and name == "source":
            nested |= {f"{path}.source: kind {source.model_fields['kind'].default}": source for source in SOURCES}
    if extra_model := _extra_model(model):
        nested[f"{path}.<name>"] = extra_model
    if rows:
        yield f"`{path}`\n\n" + "\n".join([TABLE, *rows])
    for inner_path, inner in nested.items():
        yield from _markdown_tables(inner, inner_path)


def _row(name: str, field: FieldInfo, more: str = "") -> str:
    default = "" if _nested(field) and field.default is not None else f"`{_cell(_default(field))}`"
    return f"| `{name}` | {default} | {_cell(_bounds(field))} | {_cell(field.description or '')}{more} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _items(field: FieldInfo) -> tuple[Any, ...]:
    """Return the types of a list's items, or () for another field."""
    return get_args(field.annotation) if get_origin(field.annotation) is list else ()


def _print_fields(model: type[BaseModel], indent: str) -> None:
    for name, field in model.model_fields.items():
        if name == "kind" or FILLED_IN in (field.description or ""):
            continue
        if nested := _nested(field):
            optional = field.default is None
            print(f"{indent}{name}:{' null' if optional else ''}  # {field.description}")
            _print_fields(nested, indent + ("  # " if optional else "  "))
            continue
        print(indent + _line(name, field))
        if model.__name__ == "CorpusSpec" and name == "source":
            for source in SOURCES:
                print(f"{indent}  # kind: {source.model_fields['kind'].default} - {(source.__doc__ or '').strip()}")
                _print_fields(source, indent + "  #   ")

    if extra_model := _extra_model(model):
        print(f"{indent}<name>:  # {(extra_model.__doc__ or '').strip()}")
        _print_fields(extra_model, indent + "  ")


def _line(name: str, field: FieldInfo) -> str:
    return f"{name}: {_default(field)}  # {'; '.join(filter(None, [field.description, _bounds(field)]))}"


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
    limits = [(type(item), item) for item in field.metadata if type(item) in SIGNS]
    signs = [f"{SIGNS[kind]} {getattr(item, kind.__name__.lower())}" for kind, item in limits]
    return " | ".join(options) if len(options) > 1 else ", ".join(signs)
