"""Where a recipe's text comes from: a file, with the changes that `baton run` and `baton plan` make for a try.

    recipe.yaml
    recipe.yaml#post_training.0.sft.steps=20&pretrain.optimizer.lr=1e-3      --set, twice
    recipe.yaml#smoke                                                        --smoke

The changes are a part of the recipe's name, so that `pyflyte run --recipe` has them too and a printed command repeats
the run. `&`, `%` and `#` in a value are percent-encoded.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import click

from baton.infra.project import settings

SMOKE = "smoke"


@dataclass(frozen=True)
class Source:
    """A recipe file, and what a try changes in it."""

    path: Path
    sets: tuple[tuple[str, str], ...] = ()  # (field's path, value in YAML)
    smoke: bool = False

    @classmethod
    def parse(cls, text: str) -> "Source":
        file, mark, changes = text.partition("#")
        if not mark or os.path.exists(text):  # noqa: PTH110 - False for a name that is too long
            return cls(Path(text))
        words = [unquote(word) for word in changes.split("&")]
        sets = tuple((field, value) for field, is_set, value in (word.partition("=") for word in words) if is_set)
        return cls(Path(file), sets, SMOKE in words)

    def changed(self, sets: tuple[tuple[str, str], ...], smoke: bool) -> "Source":
        return Source(self.path, self.sets + sets, self.smoke or smoke)

    def __str__(self) -> str:
        sets = [quote(f"{field}={value}", safe="=/:,. []{}'\"@~+") for field, value in self.sets]
        words = [SMOKE] * self.smoke + sets
        return f"{self.path}#{'&'.join(words)}" if words else str(self.path)


class Change(click.ParamType):
    """FIELD=VALUE, such as pretrain.steps=20."""

    name = "field=value"

    def convert(
        self, value: str | tuple[str, str], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        field, is_set, text = value.partition("=")
        if not is_set or not all(part for part in field.split(".")):
            self.fail(f"{value!r} is not FIELD=VALUE, such as pretrain.steps=20 or post_training.0.sft.steps=20")
        return field, text


def recipe_of_project() -> str:
    """Return the path of the project's recipe, for commands that name none. Raises click.UsageError."""
    if "recipe" not in (fields := settings()):
        raise click.UsageError("Missing argument 'RECIPE', since no baton.toml here or above names one.")
    return os.path.relpath(fields["recipe"])


RECIPE = click.argument("recipe", required=False, callback=lambda _, __, value: value or recipe_of_project())
SET = click.option(
    "--set", "sets", multiple=True, type=Change(), help="Replace a field for this run: pretrain.steps=20. Repeatable."
)
SMOKE_OPTION = click.option(
    "--smoke", is_flag=True, help="A few steps of each stage on the recipe's own data: does everything work?"
)
