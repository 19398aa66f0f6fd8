"""Know before you pay: what a recipe would do, take and cost. Nothing is run.

python -m workflows.plan RECIPE             the stages, what is cached, what each takes, where it would go
python -m workflows.plan RECIPE --json      the same for machines
python -m workflows.plan RECIPE --mfu 0.3   hours at 30 % of the accelerators' peak

Exit code 2 when the recipe has a problem: `pyflyte run` refuses it in the same words.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from tasks.posttrain.spec import PostTrainSpec
from tasks.pretrain.accelerators import BY_NAME
from tasks.pretrain.fit import Place, place_of
from tasks.pretrain.layout import Layout
from tasks.pretrain.memory import GB
from tasks.pretrain.spec import PretrainSpec
from tasks.spec import Problem, StageSpec
from workflows.continuous_recipe import recipe_of
from workflows.costs import Quotes, over_budget, quotes
from workflows.given import Given, devices_of, tuning_devices
from workflows.machine import machine_problems, remarks
from workflows.needs import MFU, Need, need
from workflows.preflight import has_dag
from workflows.recipe import Recipe, given_of
from workflows.recipe_error import RecipeError, shown
from workflows.recipe_text import load


@dataclass(frozen=True)
class Planned:
    """One stage of the plan."""

    name: str
    stage: str
    spec: StageSpec
    after: tuple[str, ...]
    cached: str | None  # the digest that it takes from the cache
    need: Need | None = None  # None: no arithmetic to speak of, or not known before the run
    device: str | None = None  # what its memory and its hours are for
    device_memory: float | None = None  # bytes
    hours: float | None = None  # None: not known
    quotes: Quotes | None = None  # None: no placement, it runs here


def plan(recipe: Recipe, given: Given, mfu: float) -> Iterator[Planned]:
    """Every stage of the recipe, in an order in which they can run."""
    from workflows.dag import steps_of  # the stages and Flyte: a recipe that is not whole needs neither

    for step in steps_of(recipe):
        placement, base = step.spec.placement, need(given, step.spec)
        quoted = quotes(placement, base, mfu) if placement else None
        place = _place(step.spec, given, quoted) if base else None
        if base is None or place is None:
            yield Planned(step.name, step.stage, step.spec, step.after, step.cached, base, quotes=quoted)
            continue
        needed, hours = need(given, step.spec, place.kernels, place.capacity), base.hours(BY_NAME.get(place.name), mfu)
        device = (place.name, place.capacity)
        yield Planned(step.name, step.stage, step.spec, step.after, step.cached, needed, *device, hours, quoted)


def _place(spec: StageSpec, given: Given, quoted: Quotes | None) -> Place | None:
    """Where one process of the stage runs: where it is tried first, or where its spec says, or here."""
    layout, device = Layout(), None
    if isinstance(spec, PretrainSpec):
        layout, device = spec.layout, next(iter(devices_of(spec)), None)
    elif isinstance(spec, PostTrainSpec):
        device = next(iter(tuning_devices(given, spec)), None)
    if quoted and quoted.found:
        device = quoted.found[0].offer.accelerator
    if spec.placement and not device:
        return None  # some machine without an accelerator
    return place_of(layout.model_copy(update={"device": device}), given.machine)


def text(name: str, stages: list[Planned], given: Given, mfu: float) -> Iterator[str]:
    """The plan for a person, line by line."""
    yield f"{name}: {len(stages)} stages, {sum(bool(each.cached) for each in stages)} of them cached"
    for each in stages:
        state = f"cached {each.cached[:12]}" if each.cached else "placed" if each.quotes else "here"
        yield f"  {each.name:<12} {state:<20}{'after ' * bool(each.after)}{', '.join(each.after)}".rstrip()
    for each in stages:
        if each.need or each.quotes:
            yield "\n" + each.name + (" (cached: it will take nothing)" if each.cached else "")
            lines = [*_takes(each, mfu), *_costs(each.quotes)]
            yield from (f"  {title:<12}{words}" for title, words in lines)
    costs = [each.quotes.found[0].expected for each in stages if each.quotes and each.quotes.found and not each.cached]
    known = [cost for cost in costs if cost is not None]
    if len(costs) > 1:
        rest = f", and of {len(costs) - len(known)} more it is not known" * (len(known) < len(costs))
        yield f"\nexpected cost of {len(known)} stages: {_dollars(sum(known))}{rest}"


def _of_this_machine(given: Given) -> Iterator[str]:
    """What a run would be refused for on this machine, while the recipe may be meant for another, and remarks."""
    yield from (f"{problem}" for problem in machine_problems(given))
    yield from remarks(given)


def _takes(each: Planned, mfu: float) -> Iterator[tuple[str, str]]:
    needed, spec = each.need, each.spec
    if needed is None:
        return
    mixture = needed.active_parameters < needed.parameters
    meets = f", of which a token meets {_short(needed.active_parameters)}" if mixture else ""
    yield "parameters", f"{_short(needed.parameters)}{meets}"
    tokens = f"{_short(needed.tokens)} at most"
    if isinstance(spec, PretrainSpec):
        ratio = f"{needed.tokens / needed.active_parameters:.3g} for each parameter{' that it meets' * mixture}"
        batch = _short(spec.global_batch * spec.sequence_length)
        tokens = f"{_short(needed.tokens)}, {ratio}; {spec.steps:,} steps of {batch}"
    yield "tokens", tokens
    yield "arithmetic", f"{needed.flops / needed.tokens / 1e9:.3g} GFLOP a token, {needed.flops:.2e} FLOP in all"
    if isinstance(spec, PretrainSpec):
        yield "layout", f"{spec.layout.name()}: {spec.layout.nodes} x {spec.layout.processes} processes"
    if each.device_memory:
        capacity = f"{each.device} ({each.device_memory / GB:.3g} GB)"
        yield "memory", f"{needed.memory.total / GB:.3g} GB on each {capacity}"
        yield "", needed.memory.words()
    if each.hours is None:
        yield "time", "not known: the peak of what it runs on is not in the table"
    else:
        least = "at least " if needed.sampling else ""
        days = f" ({each.hours / 24:.3g} days)" if each.hours > 48 else ""
        on = f"{needed.processes} {each.device}, at {mfu:.0%} of their peak (--mfu)"
        yield "time", f"{least}{each.hours:.3g} hours{days} on {on}"


def _costs(quoted: Quotes | None) -> Iterator[tuple[str, str]]:
    if quoted is None:
        return
    if not quoted.found:
        none = "no cloud that is enabled here offers such machines"
        yield "prices", f"not known: {quoted.unknown or quoted.refused}" if quoted.unknown or quoted.refused else none
        return
    for number, quote in enumerate(quoted.found, 1):
        offer = quote.offer
        other = offer.on_demand_price if offer.spot else offer.spot_price
        instead = f" ({'on-demand' if offer.spot else 'spot'} {_dollars(other)})" if other is not None else ""
        price = f"{_dollars(offer.price)} an hour{instead}, {_dollars(quote.expected)} in all"
        yield "would try" * (number == 1), f"{number}. {offer.words()} {price}{': over a limit' * quote.over}"
    spot, on_demand = (_dollars(quoted.cheapest(kind)) for kind in (True, False))
    yield "cost", f"expected {_dollars(quoted.found[0].expected)}; all spot {spot}, all on-demand {on_demand}"


def _dollars(amount: float | None) -> str:
    return "not known" if amount is None else f"${amount:,.2f}"


def _short(number: float) -> str:
    """Three digits and a unit: 30.5 B."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--json", "for_machines", is_flag=True, help="For machines: one JSON object.")
@click.option("--mfu", default=MFU, show_default=True, type=click.FloatRange(0.01, 1), help="Share of the peak FLOP/s.")
def main(recipe: Path, for_machines: bool, mfu: float) -> None:
    """What a RECIPE would do, take and cost, before anything runs."""
    problems: list[Problem] = []
    stages: list[Planned] = []
    lines: Mapping[str, int] = {}
    try:
        whole: Any = load(recipe, recipe_of)
    except RecipeError as error:
        whole, problems, lines = error.recipe, error.problems, error.lines
    if whole:
        given = given_of(whole)
        if mfu != MFU:
            at_default = over_budget(given)
            problems = [each for each in problems if each not in at_default] + over_budget(given, mfu)
        if has_dag(given):
            stages = list(plan(whole, given, mfu))
    name = whole.name if whole else recipe.stem
    if for_machines:
        found = {
            "stages": [{name: value for name, value in asdict(each).items() if name != "spec"} for each in stages],
            "problems": [asdict(each) | {"value": shown(each)} for each in problems],
        }
        print(json.dumps({"recipe": name, "mfu": mfu, **found}, indent=1, default=str))
    else:
        for line in text(name, stages, given, mfu) if stages else ():
            print(line)
        for words in _of_this_machine(given) if whole else ():
            print(f"\nhere: {words}")
        print(f"\n{RecipeError(problems, lines=lines)}" if problems else "\nno problem found")
    sys.exit(2 if problems else 0)


if __name__ == "__main__":
    main()
