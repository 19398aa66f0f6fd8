"""Format a plan as text."""

from collections.abc import Iterator

from baton.infra.text import brief, count, escaped, gigabytes
from baton.tasks.evaluate.spec import EvaluateSpec
from baton.tasks.hardware.accelerators import BY_NAME
from baton.tasks.hardware.need import DECODING, FILLED, Need
from baton.tasks.posttrain.spec import PostTrainSpec
from baton.workflows.plan.costs import Quotes
from baton.workflows.plan.planned import Planned


def text(name: str, stages: list[Planned]) -> Iterator[str]:
    """The plan as text, line by line."""
    yield f"{name}: {len(stages)} stages, {sum(bool(step.cached) for step in stages)} of them cached"
    width = max([12, *(len(step.name) for step in stages)])
    for step in stages:
        state = f"cached {step.cached[:12]}" if step.cached else "placed" if step.quotes else "here"
        yield f"  {step.name:<{width}} {state:<20}{'after ' * bool(step.after)}{', '.join(step.after)}".rstrip()
    again = [step for step in stages if step.why]
    if again:
        yield "\nwhy they run again:"
        yield from (f"  {step.name:<{width}} {escaped(step.why)}" for step in again)
    for step in stages:
        if lines := [*_takes(step), *_costs(step.quotes)]:
            yield "\n" + step.name + (" (cached: nothing to run)" if step.cached else "")
            yield from (f"  {title:<12}{words}" for title, words in lines)
    yield from _totals([step for step in stages if not step.cached])


def _totals(stages: list[Planned]) -> Iterator[str]:
    """The sums of hours and of costs, with the parts that they leave out."""
    timed = [step for step in stages if step.hours is not None]
    if timed:
        total = sum(step.hours or 0 for step in timed)
        gpu_hours = sum((step.hours or 0) * step.gpus for step in timed if step.device in BY_NAME)
        of_gpus = f", {gpu_hours:,.1f} GPU hours" if gpu_hours else ""
        others = ", ".join(dict.fromkeys(step.stage for step in stages if step.hours is None))
        several = f"{len(timed)} stages, one after the other" if len(timed) > 1 else timed[0].name
        yield f"\ntime of {several}: {brief(3600 * total)}{of_gpus}; without {others}"
    costs = [step.quotes.found[0].expected for step in stages if step.quotes and step.quotes.found]
    known = [cost for cost in costs if cost is not None]
    if len(costs) > 1:
        rest = f"; {len(costs) - len(known)} more unknown" * (len(known) < len(costs))
        yield f"\nexpected cost of {len(known)} stages: {_dollars(sum(known))}{rest}"


def _takes(step: Planned) -> Iterator[tuple[str, str]]:
    needed, spec = step.need, step.spec
    if words := spec.memory_text():
        yield "memory", words
    if needed is None:
        yield from _epochs(step)
        if step.hours is not None:
            yield "time", f"{brief(3600 * step.hours)} (hours)"
        return
    if not needed.memory.total:  # only vLLM, which uses its share of the GPU
        yield from _time(step, needed)
        return
    lines = spec.plan_lines(needed.parameters, needed.active_parameters)
    active = f", {count(needed.active_parameters)} active per token" if needed.mixture else ""
    yield "parameters", f"{count(needed.parameters)}{active}"
    yield "tokens", lines.pop("tokens", f"{count(needed.tokens)} at most")
    for number, source in enumerate(step.sources):
        yield "sources" * (number == 0), source.text()
    yield from _epochs(step)
    if rate := lines.pop("rate", None):
        yield "rate", rate
    yield "arithmetic", f"{needed.flops / needed.tokens / 1e9:.3g} GFLOP per token, {needed.flops:.2e} FLOP in total"
    yield from lines.items()
    if step.device_memory:
        capacity = f"{step.device} ({gigabytes(step.device_memory)})"
        yield "memory", f"{gigabytes(needed.memory.total)} on each {capacity}"
        yield "", needed.memory.breakdown()
    yield from _time(step, needed)


def _epochs(step: Planned) -> Iterator[tuple[str, str]]:
    for number, epochs in enumerate(step.epochs):
        yield "epochs" * (number == 0), epochs.text()


def _time(step: Planned, needed: Need) -> Iterator[tuple[str, str]]:
    """The hours, their parts, and the assumptions."""
    if step.hours is None:
        if step.device:
            yield "time", f"not known: the peak of {step.device} is not in the table"
        return
    least = "at least " if needed.not_counted and not step.earlier else "" if needed.gpu else "about "
    on = f"{step.gpus} {step.device}" if step.device in BY_NAME else "this machine's CPU"
    speed = step.earlier.text() if step.earlier else f"at {step.mfu:.0%} of peak (--mfu)"
    yield "time", f"{least}{brief(3600 * step.hours)} on {on}, {speed}"
    parts = sorted(step.parts.items(), key=lambda part: -part[1])
    yield "", ", ".join(f"{name} {brief(3600 * taken)}" for name, taken in parts if 3600 * taken >= 1)
    if needed.sampled:
        speed = "" if step.earlier else f", at {DECODING:.0%} of the memory's bandwidth"
        yield "", f"sampling {count(needed.sampled)} tokens at most{speed}"
    if not (needed.gpu or step.earlier) and isinstance(step.spec, PostTrainSpec | EvaluateSpec):
        yield "", f"with rows of {FILLED:.0%} of the maximum length"
    if needed.not_counted and not step.earlier:
        yield "", f"without {needed.not_counted}"


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
        yield "would try" * (number == 1), f"{number}. {offer.text()} {price}{': over a limit' * quote.over}"
    spot, on_demand = (_dollars(quoted.cheapest(kind)) for kind in (True, False))
    yield "cost", f"expected {_dollars(quoted.found[0].expected)}; all spot {spot}, all on-demand {on_demand}"


def _dollars(amount: float | None) -> str:
    return "not known" if amount is None else f"${amount:,.2f}"
