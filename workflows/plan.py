"""Know before you pay: print a recipe's stages, resources and cost, without running anything.

python -m workflows.plan RECIPE             stages, what is cached, resources of each, where it would run
python -m workflows.plan RECIPE --json      the same as JSON
python -m workflows.plan RECIPE --mfu 0.3   hours at 30 % of the accelerators' peak
python -m workflows.plan RECIPE --sample 1%  also try the curation on 1 % of each source

Exit code 2 if the recipe has a problem; `pyflyte run` refuses it with the same message.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from infra.errors import Stopped
from tasks.data.spec import TokenizerSpec
from tasks.grpo.spec import GRPOSpec, RolloutServers
from tasks.job import StageError
from tasks.posttrain.spec import PostTrainSpec
from tasks.pretrain.accelerators import BY_NAME
from tasks.pretrain.fit import Place, place_of
from tasks.pretrain.layout import Layout
from tasks.pretrain.memory import GB
from tasks.pretrain.spec import PretrainSpec
from tasks.spec import Problem, StageSpec
from workflows.continuous_recipe import recipe_of
from workflows.costs import Quotes, over_budget, quotes
from workflows.machine import machine_problems, remarks
from workflows.planned_sources import PlannedSource, planned_sources
from workflows.preflight import has_dag
from workflows.recipe import Recipe, context_of
from workflows.recipe_error import RecipeError, shown
from workflows.recipe_text import load
from workflows.resource_estimate import BF16, DECODING, MFU, Need, need
from workflows.run_context import RunContext, devices_of, tuning_devices
from workflows.sample import tried


@dataclass(frozen=True)
class Planned:
    """One stage of the plan."""

    name: str
    stage: str
    spec: StageSpec
    after: tuple[str, ...]
    cached: str | None  # the cached artifact's digest
    need: Need | None = None  # None: negligible arithmetic, or not known before the run
    device: str | None = None  # that memory and hours are estimated for
    device_memory: float | None = None  # bytes
    hours: float | None = None  # None: not known
    quotes: Quotes | None = None  # None: no placement, runs here
    sources: tuple[PlannedSource, ...] = ()  # of a pretraining, if the corpus has names for them


def plan(recipe: Recipe, context: RunContext, mfu: float) -> Iterator[Planned]:
    """Every stage of the recipe, in topological order."""
    from workflows.dry_run import steps_of  # imports all stages and Flyte: not for an invalid recipe

    tokens: dict[str, int] | None = None  # training tokens of the named sources
    for step in steps_of(recipe):
        tokens = tokens or step.facts.get("sources") if step.stage == "shards" else tokens
        sources: tuple[PlannedSource, ...] = ()
        if isinstance(step.spec, PretrainSpec) and step.spec.mixture and recipe.corpus and not recipe.more_corpora:
            sources = tuple(planned_sources(recipe.corpus, step.spec, tokens))
        placement, base = step.spec.placement, need(context, step.spec)
        quoted = quotes(placement, base, mfu) if placement else None
        place = _place(step.spec, context, quoted) if base else None
        if base is None or place is None:
            yield Planned(
                step.name, step.stage, step.spec, step.after, step.cached, base, quotes=quoted, sources=sources
            )
            continue
        needed = need(context, step.spec, place.kernels, place.capacity)
        hours = base.hours(BY_NAME.get(place.name), mfu)
        device = (place.name, place.capacity)
        yield Planned(
            step.name, step.stage, step.spec, step.after, step.cached, needed, *device, hours, quoted, sources
        )


def _place(spec: StageSpec, context: RunContext, quoted: Quotes | None) -> Place | None:
    """Where one process of the stage runs: the place tried first, or the spec's device, or this machine."""
    layout, device = Layout(), None
    if isinstance(spec, PretrainSpec):
        layout, device = spec.layout, next(iter(devices_of(spec)), None)
    elif isinstance(spec, PostTrainSpec):
        layout = Layout(nodes=spec.layout.nodes, processes=spec.layout.processes)
        device = next(iter(tuning_devices(context, spec)), None)
    if quoted and quoted.found:
        device = quoted.found[0].offer.accelerator
    if spec.placement and not device:
        return None  # a machine without an accelerator
    return place_of(layout.model_copy(update={"device": device}), context.machine)


def text(name: str, stages: list[Planned], mfu: float) -> Iterator[str]:
    """The plan as text, line by line."""
    yield f"{name}: {len(stages)} stages, {sum(bool(step.cached) for step in stages)} of them cached"
    width = max([12, *(len(step.name) for step in stages)])
    for step in stages:
        state = f"cached {step.cached[:12]}" if step.cached else "placed" if step.quotes else "here"
        yield f"  {step.name:<{width}} {state:<20}{'after ' * bool(step.after)}{', '.join(step.after)}".rstrip()
    for step in stages:
        if lines := [*_takes(step, mfu), *_costs(step.quotes)]:
            yield "\n" + step.name + (" (cached: nothing to run)" if step.cached else "")
            yield from (f"  {title:<12}{words}" for title, words in lines)
    costs = [step.quotes.found[0].expected for step in stages if step.quotes and step.quotes.found and not step.cached]
    known = [cost for cost in costs if cost is not None]
    if len(costs) > 1:
        rest = f"; {len(costs) - len(known)} more unknown" * (len(known) < len(costs))
        yield f"\nexpected cost of {len(known)} stages: {_dollars(sum(known))}{rest}"


def _takes(step: Planned, mfu: float) -> Iterator[tuple[str, str]]:
    needed, spec = step.need, step.spec
    if isinstance(spec, TokenizerSpec) and (memory := spec.memory()):
        yield "memory", f"{memory / GB:.2g} GB with many distinct words in {spec.sample_mb:g} MB of text (sample_mb)"
    if needed is None:
        return
    mixture = needed.active_parameters < needed.parameters
    active = f", {_short(needed.active_parameters)} active per token" if mixture else ""
    yield "parameters", f"{_short(needed.parameters)}{active}"
    tokens = f"{_short(needed.tokens)} at most"
    if isinstance(spec, PretrainSpec):
        ratio = f"{needed.tokens / needed.active_parameters:.3g} per{' active' * mixture} parameter"
        batch = _short(spec.global_batch * spec.sequence_length)
        tokens = f"{_short(needed.tokens)}, {ratio}; {spec.steps:,} steps of {batch}"
    yield "tokens", tokens
    for number, source in enumerate(step.sources):
        yield "sources" * (number == 0), source.text()
    yield "arithmetic", f"{needed.flops / needed.tokens / 1e9:.3g} GFLOP per token, {needed.flops:.2e} FLOP in total"
    if isinstance(spec, PretrainSpec):
        yield "layout", f"{spec.layout.name()}: {spec.layout.nodes} x {spec.layout.processes} processes"
    if isinstance(spec, PostTrainSpec) and spec.layout.world > 1:
        yield "layout", f"{spec.layout.sharding} over {spec.layout.nodes} x {spec.layout.processes} processes"
    if isinstance(spec, GRPOSpec) and spec.rollout_servers:
        yield "servers", _served(spec.rollout_servers, needed)
    if step.device_memory:
        capacity = f"{step.device} ({step.device_memory / GB:.3g} GB)"
        yield "memory", f"{needed.memory.total / GB:.3g} GB on each {capacity}"
        yield "", needed.memory.breakdown()
    device = BY_NAME.get(step.device or "")
    if needed.sampled and device and step.hours:
        share = needed.sampling_hours(device) / step.hours
        at = f"vLLM at {DECODING:.0%} of the memory's bandwidth"
        yield "rollouts", f"{_short(needed.sampled)} tokens at most, {share:.0%} of the time, with {at}"
    if step.hours is None:
        yield "time", "not known: the device's peak is not in the table"
    else:
        least = "at least " if needed.sampling else ""
        days = f" ({step.hours / 24:.3g} days)" if step.hours > 48 else ""
        gpus = spec.machines * spec.devices if isinstance(spec, PostTrainSpec) else needed.processes
        on = f"{gpus} {step.device}, at {mfu:.0%} of peak (--mfu)"
        yield "time", f"{least}{step.hours:.3g} hours{days} on {on}"


def _served(servers: RolloutServers, needed: Need) -> str:
    engines = f"{servers.engines} vLLM engine{'s' * (servers.engines > 1)}, tensor parallel {servers.tensor_parallel}"
    where = (
        f"on each of {servers.nodes} machine{'s' * (servers.nodes > 1)} of their own"
        if servers.nodes
        else "on the first machine"
    )
    weights = BF16 * needed.parameters / servers.tensor_parallel / GB
    return f"{engines}, {where}: {weights:.3g} GB of weights on each GPU, {servers.gpu_memory_share:.0%} with KV cache"


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
        price = f"{_dollars(offer.price)} per hour{instead}, {_dollars(quote.expected)} in total"
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


def _share(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """`1%` or `0.01` as a fraction."""
    if value is None:
        return None
    try:
        found = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        found = 0
    if not 0 < found <= 1:
        raise click.BadParameter(f"{value!r} is not a share, such as 1% or 0.01")
    return found


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--mfu", default=MFU, show_default=True, type=click.FloatRange(0.01, 1), help="Share of the peak FLOP/s.")
@click.option("--sample", metavar="SHARE", callback=_share, help="Try the curation on this share of each source: 1%.")
def main(recipe: Path, as_json: bool, mfu: float, sample: float | None) -> None:
    """Print what a RECIPE would run, need and cost, without running it."""
    problems: list[Problem] = []
    stages: list[Planned] = []
    lines: Mapping[str, int] = {}
    here: list[str] = []  # what this machine lacks for a run, and remarks: no problem, the plan may be for another
    try:
        whole: Any = load(recipe, recipe_of)
    except RecipeError as error:
        whole, problems, lines = error.recipe, error.problems, error.lines
    if whole:
        context = context_of(whole)
        if mfu != MFU:
            at_default = over_budget(context)
            problems = [problem for problem in problems if problem not in at_default] + over_budget(context, mfu)
        if has_dag(context):
            stages = list(plan(whole, context, mfu))
        here = [*map(str, machine_problems(context)), *remarks(context)]
    name = whole.name if whole else recipe.stem
    if as_json:
        found = {
            "stages": [{name: value for name, value in asdict(step).items() if name != "spec"} for step in stages],
            "problems": [asdict(problem) | {"value": shown(problem)} for problem in problems],
            "here": here,
        }
        print(json.dumps({"recipe": name, "mfu": mfu, **found}, indent=1, default=str))
    else:
        for line in text(name, stages, mfu) if stages else ():
            print(line)
        for line in here:
            print(f"\nhere: {line}")
        print(f"\n{RecipeError(problems, lines=lines)}" if problems else "\nno problem found")
    if sample and whole and not problems:
        evaluated = {name: whole.data[name] for name in whole.evaluate.sets()} if whole.evaluate else {}
        try:
            for corpus in [whole.corpus, *whole.more_corpora] if whole.corpus else []:
                for line in tried(corpus, sample, evaluated):
                    print(line, file=sys.stderr if as_json else sys.stdout)
        except StageError as error:
            raise Stopped(str(error)) from error
    sys.exit(2 if problems else 0)


if __name__ == "__main__":
    main()
