"""`baton run RECIPE` is `pyflyte run` of the shipped workflow, from any folder; -v prints that line.

Further options are those of `pyflyte run`: --overwrite-cache, -p PROJECT, -d DOMAIN, --wait, …
"""

import os
import shlex
import sys
from pathlib import Path

import click

from baton import HERE, SEARCH_PATH
from baton.infra.errors import UserError
from baton.infra.flyte.command_line import run_options
from baton.infra.tracking.annotations import annotations
from baton.workflows.recipe.source import SET, SMOKE_OPTION, Source, recipe_of_project

CONTINUOUS = "continue_training"
FILES = {"pretrain_to_rl": "pretrain_to_rl.py", CONTINUOUS: "continuous.py", "refresh_rl": "continuous.py"}


@click.command(context_settings={"ignore_unknown_options": True}, help=__doc__)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[RECIPE] [PYFLYTE'S OPTIONS]")
@SET
@SMOKE_OPTION
@click.option("--workflow", type=click.Choice([*FILES]), help="Of a continuous recipe: its night, or refresh_rl.")
@click.option("--remote", is_flag=True, help="Run on the Flyte cluster that --config names.")
@click.option("--config", type=click.Path(path_type=Path), help="Flyte's configuration file, for --remote.")
@click.option("--note", default="", help="Text about this run, shown on its page; in no cache key.")
@click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="A tag of this run. Repeatable.")
@click.option("-v", "--verbose", is_flag=True, help="Print the line of pyflyte.")
def main(
    words: tuple[str, ...],
    sets: tuple[tuple[str, str], ...],
    smoke: bool,
    workflow: str | None,
    remote: bool,
    config: Path | None,
    note: str,
    tags: tuple[str, ...],
    verbose: bool,
) -> None:
    named = bool(words) and not words[0].startswith("-")
    options = words[1:] if named else words
    for word in options:
        _refuse_field(word)
    source = Source.parse(words[0] if named else recipe_of_project()).changed(sets, smoke)
    name = workflow or _workflow(source)
    program = Path(sys.executable).with_name("pyflyte")
    line = [
        str(program),
        *(["--config", str(config)] if config else []),
        "run",
        *(["--remote", "--copy", "all"] if remote else []),
        *options,
        _shortest(HERE / "workflows" / FILES[name]),
        name,
        "--recipe",
        str(source),
    ]
    if remote and not SEARCH_PATH:
        click.echo("! pods get the files of this folder alone: their images must have Baton's wheel", err=True)
    if verbose:
        click.echo(shlex.join(["pyflyte", *line[1:]]), err=True)
    os.environ.update(annotations(note, tags))
    sys.stdout.flush()
    try:
        os.execv(program, line)
    except OSError as error:
        raise UserError(f"{program}: cannot be started: {error.strerror}. Install Baton's packages again") from error


def _workflow(source: Source) -> str:
    """Return the workflow for the kind of the recipe. A recipe with problems is refused by either with all of them."""
    from baton.workflows.continuous_training.recipe import ContinuousRecipe, recipe_of
    from baton.workflows.recipe.error import RecipeError
    from baton.workflows.recipe.text import load

    try:
        recipe: object = load(str(source), recipe_of)
    except RecipeError as error:
        if error.recipe is None:
            raise
        recipe = error.recipe
    if not isinstance(recipe, ContinuousRecipe):
        return "pretrain_to_rl"
    if source.smoke:
        raise UserError(f"{source.path}: --smoke is for a run, and this is a continuous recipe")
    return CONTINUOUS


def _refuse_field(word: str) -> None:
    """Raise click.UsageError for a field of the recipe as an option, by its name here or in another library."""
    from baton.tasks.posttrain.methods import METHODS
    from baton.workflows.recipe import SECTIONS
    from baton.workflows.recipe.synonyms import FIELDS

    name = word.removeprefix("--").partition("=")[0].replace("-", "_")
    known = {field for spec in (*SECTIONS.values(), *METHODS.values()) for field in spec.model_fields}
    if not word.startswith("--") or name not in known | FIELDS.keys():
        return
    if word.partition("=")[0] in run_options():
        return
    called = name if name in known else FIELDS[name][0].partition(";")[0]
    raise click.UsageError(
        f"no such option: {word}. A field is set in the recipe, where this one is {called}; for a try: "
        f"--set SECTION.{called}=VALUE, such as --set pretrain.optimizer.lr=1e-3 or --set post_training.0.sft.steps=20"
    )


def _shortest(path: Path) -> str:
    """In the clone, the path of the documentation."""
    real = path.resolve()
    return str(real.relative_to(Path.cwd()) if real.is_relative_to(Path.cwd()) else real)
