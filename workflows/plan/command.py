"""Know before you pay: print a recipe's stages, resources and cost, without running anything.

baton plan RECIPE             stages, what is cached, resources of each, where it would run; of a
                                            continuous recipe those of its next night
baton plan RECIPE --json      the same as JSON
baton plan RECIPE --mfu 0.3   hours at 30 % of the accelerators' peak
baton plan RECIPE --device H100:8   for a machine with 8 H100, in place of this one
baton plan RECIPE --set pretrain.steps=20   with another value of a field; --smoke: a few steps of each stage
baton plan RECIPE --sample 1%  also try the curation on 1 % of each source

Exit code 2 if the recipe has a problem; `pyflyte run` refuses it with the same message.
"""

import json
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, cast

import click

from baton.infra.errors import UserError
from baton.infra.options import Number
from baton.infra.text import escaped
from baton.tasks.core.job import StageError
from baton.tasks.core.spec import Problem
from baton.tasks.hardware.accelerators import BY_NAME
from baton.tasks.hardware.need import MFU, MIXTURE_MFU
from baton.workflows.checks.files import unusable_paths
from baton.workflows.checks.machine import asks_hub, machine_problems, remarks
from baton.workflows.checks.run_context import planned_for
from baton.workflows.checks.table import checked, has_dag
from baton.workflows.checks.unread import unread
from baton.workflows.checks.warnings import warnings_of
from baton.workflows.continuous_training.recipe import ContinuousRecipe, recipe_of
from baton.workflows.plan.costs import over_budget
from baton.workflows.plan.planned import Planned, plan
from baton.workflows.plan.text import text
from baton.workflows.recipe import Recipe, context_of
from baton.workflows.recipe.error import RecipeError, shown
from baton.workflows.recipe.source import RECIPE, SET, SMOKE_OPTION, Source
from baton.workflows.recipe.text import load

ASSUMED = f"{MFU}; for mixtures of experts {MIXTURE_MFU}"


def _share(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """`1%` or `0.01` as a fraction."""
    if value is None:
        return None
    try:
        share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        share = 0
    if not 0 < share <= 1:
        raise click.BadParameter(f"{value!r} is not a share, such as 1% or 0.01")
    return share


def _device(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """`H100:8` as a name and a count."""
    if value is None:
        return None
    name, _, count = value.partition(":")
    known = {known.lower(): known for known in BY_NAME}.get(name.lower())
    if known is None:
        raise click.BadParameter(f"{name!r} is none of {', '.join(BY_NAME)}")
    if count and not (count.isascii() and count.isdigit() and 1 <= int(count[:6]) <= 1024):
        raise click.BadParameter(f"{count!r} is not a number of GPUs from 1 to 1024")
    return known, int(count or 1)


@click.command()
@RECIPE
@SET
@SMOKE_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--mfu", type=Number(0.01, 1), help=f"Share of the peak FLOP/s.  [default: {ASSUMED}]")
@click.option("--device", metavar="GPU[:COUNT]", callback=_device, help="Plan for a machine with these GPUs: H100:8.")
@click.option("--sample", metavar="SHARE", callback=_share, help="Try the curation on this share of each source: 1%.")
def main(
    recipe: str,
    sets: tuple[tuple[str, str], ...],
    smoke: bool,
    as_json: bool,
    mfu: float | None,
    device: tuple[str, int] | None,
    sample: float | None,
) -> None:
    """Print what a RECIPE would run, need and cost, without running it."""
    with planned_for(*device) if device else nullcontext():
        examination = examined(Source.parse(recipe).changed(sets, smoke), mfu, elsewhere=device is not None)
    if as_json:
        print(json.dumps(examination.as_json(mfu), indent=1, default=str))
    else:
        print("\n".join(examination.lines()))
    parsed = examination.recipe
    if sample and parsed and not examination.problems:
        from baton.workflows.plan.sample import tried  # imports pyarrow

        evaluated = {name: parsed.data[name] for name in parsed.evaluate.sets()} if parsed.evaluate else {}
        try:
            for corpus in [parsed.corpus, *parsed.more_corpora] if parsed.corpus else []:
                for line in tried(corpus, sample, evaluated):
                    print(line, file=sys.stderr if as_json else sys.stdout)
        except StageError as error:
            raise UserError(str(error)) from error
    sys.exit(2 if examination.problems else 0)


@dataclass(frozen=True)
class Examined:
    """A recipe's plan, its problems and remarks about it."""

    name: str
    recipe: Recipe | None  # None if it has no valid form
    stages: list[Planned] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    numbers: Mapping[str, int] = field(default_factory=dict)  # line numbers in the recipe, by field
    warnings: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    machine_notes: list[str] = field(default_factory=list)  # what this machine lacks for a run, and remarks
    wrong: Collection[str] = ()  # sections with a wrong value
    night: str | None = None  # what a continuous recipe's plan is based on

    def lines(self) -> Iterator[str]:
        for part, stages in groupby(self.stages, attrgetter("part")):
            yield from text(part or self.name, [*stages])
            yield from [""] if part else ()
        yield from [self.night] if self.night else ()
        notes = {"warning": self.warnings, "not known": self.unread, "here": self.machine_notes}
        for kind, lines in notes.items():
            yield from (f"\n{kind}: {escaped(note)}" for note in lines)
        if self.problems:
            yield f"\n{RecipeError(self.problems, self.recipe, self.wrong, self.numbers)}"
        else:
            yield "\nno problem found" + " in what is known" * bool(self.unread)

    def as_json(self, mfu: float | None) -> dict[str, Any]:
        stages = [asdict(step) for step in self.stages]
        return {
            "recipe": self.name,
            "mfu": mfu,
            "stages": [{name: value for name, value in step.items() if name != "spec"} for step in stages],
            "night": self.night,
            "problems": [asdict(problem) | {"value": shown(problem)} for problem in self.problems],
            "warnings": self.warnings,
            "unread": self.unread,
            "here": self.machine_notes,
        }


def examined(source: Source, mfu: float | None, elsewhere: bool) -> Examined:
    """Examine a recipe file. `elsewhere`: it is planned for another machine than this one."""
    recipe, error = _read(source)
    if recipe and not unusable_paths(context_of(recipe)) and asks_hub(context_of(recipe)):
        recipe, error = _read(source)
    problems, numbers = (error.problems, error.lines) if error else ([], {})
    if recipe is None or (error and error.wrong):
        return Examined(source.path.stem, None, problems=problems, numbers=numbers, wrong=error.wrong if error else ())
    return examined_recipe(recipe, problems, numbers, mfu, elsewhere)


def examined_recipe(
    recipe: Recipe, problems: list[Problem], numbers: Mapping[str, int], mfu: float | None, elsewhere: bool
) -> Examined:
    """Examine a recipe that has these problems."""
    context = context_of(recipe)
    if unusable_paths(context):  # whatever looks something up would fail
        return Examined(recipe.name, recipe, problems=problems, numbers=numbers)
    if mfu is not None:
        at_default = over_budget(context)
        problems = [problem for problem in problems if problem not in at_default] + over_budget(context, mfu)
    stages: list[Planned] = []
    night = None
    try:
        if has_dag(context) and isinstance(recipe, ContinuousRecipe):
            from baton.workflows.plan.night import (
                planned_night,  # imports all stages and Flyte: not for an invalid recipe
            )

            planned = planned_night(recipe)
            stages = [stage for part in planned.parts for stage in plan(recipe, context, mfu, part)]
            night = planned.note
        elif has_dag(context):
            stages = list(plan(recipe, context, mfu))
    except UserError:
        if not problems:
            raise
        # one of the problems is that a file in a stage's identity cannot be read
    notes = [] if elsewhere else [*map(str, machine_problems(context)), *remarks(context)]
    return Examined(
        recipe.name, recipe, stages, problems, numbers, warnings_of(context), unread(context), notes, night=night
    )


def _read(source: Source) -> tuple[Recipe | None, RecipeError | None]:
    """The recipe, if each of its known fields is valid by itself, and its problems."""
    try:
        return load(str(source), recipe_of, check=checked), None
    except RecipeError as error:
        return cast(Recipe | None, error.recipe), error
