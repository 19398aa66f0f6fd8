"""Estimate the cost of stages with a placement, and check it against their limits.

The expected cost is the price at the place tried first, times the stage's hours. It leaves out storage, traffic between
clouds, and work repeated after a preemption.
"""

import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.infra.placement.config import Placement
from baton.infra.pod import this_pod
from baton.infra.progress import say
from baton.infra.text import brief
from baton.tasks.core.spec import Problem, StageSpec
from baton.tasks.hardware.accelerators import BY_NAME
from baton.tasks.hardware.need import Need
from baton.workflows.checks.run_context import RunContext, need, placements_of

if TYPE_CHECKING:
    from baton.infra.placement.prices import Offer


@dataclass(frozen=True)
class Quote:
    """One place, with the stage's hours and its cost in US dollars; None if they are not known."""

    offer: "Offer"
    hours: float | None
    expected: float | None  # on the machines that would be tried
    spot: float | None
    on_demand: float | None
    over: bool  # a limit of the placement is exceeded


@dataclass(frozen=True)
class Quotes:
    """The places of one stage, in the order in which SkyPilot tries them."""

    found: tuple[Quote, ...] = ()
    unknown: str | None = None  # why prices are not known here
    refused: str | None = None  # why SkyPilot rejects the placement

    def cheapest(self, spot: bool) -> float | None:
        """The stage's lowest cost on spot or on-demand machines."""
        costs = (quote.spot if spot else quote.on_demand for quote in self.found)
        return min((cost for cost in costs if cost is not None), default=None)


def quotes(spec: StageSpec, needed: Need | None, mfu: float | None) -> Quotes:
    """The places where a placed stage could run, with the cost of each."""
    assert spec.placement
    offered = _offers(spec.placement.model_dump_json())
    if isinstance(offered, Quotes):
        return offered
    return Quotes(tuple(_quote(offer, spec.placement, _hours(offer, spec, needed, mfu)) for offer in offered))


def _hours(offer: "Offer", spec: StageSpec, needed: Need | None, mfu: float | None) -> float | None:
    return needed.hours(BY_NAME.get(offer.accelerator or ""), mfu) if needed else spec.expected_hours()


def _quote(offer: "Offer", placement: Placement, hours: float | None) -> Quote:
    prices = (offer.price, offer.spot_price, offer.on_demand_price)
    cost, spot, on_demand = (None if hours is None or price is None else hours * price for price in prices)
    return Quote(offer, hours, cost, spot, on_demand, any(_exceeded(placement, offer.price, cost, hours)))


def _exceeded(
    placement: Placement, price: float, cost: float | None, hours: float | None
) -> Iterator[tuple[str, float, float]]:
    """Each exceeded limit: its name, its value, and the smallest value that would do."""
    for name, least in (("max_price_per_hour", price), ("max_price_per_run", cost), ("time_limit_h", hours)):
        limit = getattr(placement, name)
        if limit is not None and least is not None and least > limit:
            yield name, limit, least


@functools.cache  # a recipe is read several times in one run
def _offers(placement: str) -> "tuple[Offer, ...] | Quotes":
    if this_pod() or importlib.util.find_spec("sky") is None:  # a cluster's recipe is checked at launch
        return Quotes(unknown="SkyPilot is not installed here")
    from baton.infra.placement.prices import NoPrices, offers  # imports sky: only if there is a placement

    try:
        return tuple(offers(Placement.model_validate_json(placement)))
    except NoPrices as error:
        say(f"A placement's prices and limits are not checked: {error}")
        return Quotes(unknown=str(error))
    except ValueError as error:
        return Quotes(refused=str(error))


def over_budget(context: RunContext, mfu: float | None = None) -> list[Problem]:
    """Every limit of a placement that its stage would exceed. Prices are looked up only for placements with limits."""
    specs, problems = context.stages(), []
    for stage, placement in placements_of(context).items():
        if not (placement.max_price_per_hour or placement.max_price_per_run or placement.time_limit_h):
            continue
        needed = need(context, specs[stage])
        of_peak = needed.mfu(mfu) if needed else 0.0
        exceeded = _limit_problems(placement, quotes(specs[stage], needed, mfu), of_peak)
        problems += [problem.under(f"{stage}.placement") for problem in exceeded]
    return problems


def _limit_problems(placement: Placement, quoted: Quotes, mfu: float) -> Iterator[Problem]:
    if quoted.refused:
        yield Problem("", "on", f"SkyPilot rejects it: {quoted.refused}")
    elif not (quoted.unknown or quoted.found):
        without_limit = _offers(placement.model_copy(update={"max_price_per_hour": None}).model_dump_json())
        if without_limit and not isinstance(without_limit, Quotes):
            first_place = f"{without_limit[0].text()} is the first of the places"
            allowed = f"at least {without_limit[0].price:,.2f}: {first_place}; or other machines"
            yield Problem("max_price_per_hour", placement.max_price_per_hour or 0, allowed)
        else:
            yield Problem("", "on", "no cloud that is enabled here has such machines; widen the placement")
    for first in quoted.found[:1]:
        where = f"{first.offer.text()} is tried first and costs ${first.offer.price:,.2f} an hour"
        work = f"{where}, for {brief(3600 * first.hours)}" if first.hours else where
        work += f" at {mfu:.0%} of its peak" * bool(first.hours and mfu)
        for name, limit, least in _exceeded(placement, first.offer.price, first.expected, first.hours):
            yield Problem(name, limit, f"at least {least:,.2f}: {work}; or less to compute, or other machines")
