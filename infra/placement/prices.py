"""Prices of a placement, and the order of its places: one function for the plan and for the job.

They are looked up in SkyPilot's catalogs, in this process, by the functions of its optimizer: for each cloud the
cheapest machine that a choice allows, in each of its regions. A region's zones count as one place.

A job gets its places as `ordered`: SkyPilot's controller of managed jobs turns `any_of` into a list in the order of a
set (skypilot#10489). tests/placement/test_order.py fails when a release has the fix (#10490). Import this only if
there is a placement: loading SkyPilot takes some seconds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import requests
from sky import exceptions, global_user_state, sky_logging, skypilot_config
from sky.clouds.cloud import CloudCapability, CloudImplementationFeatures
from sky.utils.registry import CLOUD_REGISTRY
from sky.utils.resources_utils import make_launchables_for_valid_region_zones

from baton.infra.placement.config import Placement, is_rented
from baton.infra.placement.skypilot import sky
from baton.infra.progress import say
from baton.infra.text import clause

SHOWN = 10  # places, in a plan
MOST = 40  # places in a job's order; SkyPilot's time for a failover grows with their square


class NoPrices(Exception):
    """Prices can't be looked up here; the message says why and what to do."""


@dataclass(frozen=True)
class Offer:
    """One place. Prices are in US dollars per hour for all nodes, and None if the place has no such machines."""

    place: str  # aws/us-east-1
    instance: str | None  # None on Kubernetes and Slurm
    accelerator: str | None
    count: float  # accelerators per node
    nodes: int
    spot: bool  # whether spot machines would be tried
    spot_price: float | None
    on_demand_price: float | None

    @property
    def price(self) -> float:
        price = self.spot_price if self.spot else self.on_demand_price
        assert price is not None  # a place without a price is no offer
        return price

    def text(self) -> str:
        chips = f"{self.count:g} {self.accelerator}" if self.accelerator else "no accelerator"
        times = f"{self.nodes} x " if self.nodes > 1 else ""
        return f"{self.place} {times}{self.instance or 'nodes'} ({chips}), {'spot' if self.spot else 'on-demand'}"


def offers(placement: Placement, most: int = SHOWN) -> list[Offer]:
    """The first `most` places in the order in which a job tries them; empty if there is none. Raises NoPrices, and
    ValueError if SkyPilot rejects the placement."""
    with sky_logging.silent():
        clouds = _clouds()
        choices = placement.choices(clouds=clouds)
        return [offer for offer, _ in _found(placement, choices, clouds, is_job=False)][:most]


def ordered(placement: Placement, docker: str | None, clouds: Sequence[str]) -> dict[str, Any]:
    """Return the `resources:` of a job, with its places in the order of `offers`. `clouds`: the clouds that SkyPilot's
    API server has access to. Raises ValueError if SkyPilot rejects the placement.

    The placement's choices follow if there are more places, and stand alone where SkyPilot must find the places itself:
    without catalogs here, and on clouds that are not enabled (its error names them)."""
    choices = placement.choices(docker, clouds)
    places: list[dict[str, Any]] = []
    try:
        with sky_logging.silent():
            found = _found(placement, choices, [cloud.lower() for cloud in clouds], is_job=True)
        places = [resources for _, resources in found]
    except NoPrices as error:
        say(f"{clause(error)}. The places are tried in the order of the recipe, spot machines first, not by price")
    if not places and placement.choose == "cheapest":
        choices.sort(key=lambda choice: not choice["use_spot"])
    rest = [] if 0 < len(places) <= MOST else choices
    return placement.each_node() | {"ordered": [*places[:MOST], *rest]}


def _clouds() -> list[str]:
    """The clouds that SkyPilot has access to, as its server on this machine last found. Raises NoPrices."""
    global_user_state.initialize_and_get_db()
    workspace = skypilot_config.get_active_workspace()
    clouds = global_user_state.get_cached_enabled_clouds(CloudCapability.COMPUTE, workspace)
    if not clouds:
        raise NoPrices("SkyPilot has no cloud enabled on this machine; run `sky check`, which looks for credentials")
    return [str(cloud).lower() for cloud in clouds]


def _found(
    placement: Placement, choices: list[dict[str, Any]], clouds: Sequence[str], is_job: bool
) -> list[tuple[Offer, dict[str, Any]]]:
    """The places within the price limit, each with its `resources:`. Equal prices keep the order of the recipe. Raises
    NoPrices, ValueError."""
    found: dict[str, tuple[Offer, int, dict[str, Any]]] = {}  # the same place may follow from two choices
    for number, choice in enumerate(choices):
        for machine in _machines(placement, choice, clouds, is_job):
            offer, resources = _offer(machine, choice, placement.nodes)
            if offer is None or offer.price > (placement.max_price_per_hour or float("inf")):
                continue
            known = found.get(offer.text())
            if known is None or (placement.choose == "cheapest" and offer.price < known[0].price):  # another zone
                found[offer.text()] = offer, number, resources
    in_order = placement.choose == "in_order"
    places = sorted(found.values(), key=lambda each: (each[1] if in_order else 0, each[0].price, each[1]))
    return [(offer, resources) for offer, _, resources in places]


def _machines(
    placement: Placement, choice: dict[str, Any], clouds: Sequence[str], is_job: bool
) -> Iterator[sky.Resources]:
    """The cheapest machine that a choice allows on each cloud, in each region and zone that has it. For a job, a
    cluster is kept even if it cannot be queried here or has no such machine as far as is known here: SkyPilot's server
    may know more."""
    config = placement.each_node() | {name: value for name, value in choice.items() if name != "image_id"}
    (wanted,) = sky.Resources.from_yaml_config(config)
    for cloud in [wanted.cloud] if wanted.cloud else map(CLOUD_REGISTRY.from_str, sorted(clouds)):
        if cloud is None or str(cloud).lower() not in clouds:
            continue
        if not (is_job and _is_cluster(cloud)):
            yield from _asked(cloud, wanted, placement.nodes)
            continue
        try:
            machines = list(_asked(cloud, wanted, placement.nodes))
        except Exception:  # each kind of cluster has its own error for one that is unknown or unreachable
            machines = []
        yield from machines or [wanted.copy(cloud=cloud)]


def _asked(cloud: Any, wanted: sky.Resources, nodes: int) -> Iterator[sky.Resources]:
    try:
        wanted.validate()
        for cheapest in cloud.get_feasible_launchable_resources(wanted, nodes).resources_list[:1]:
            yield from make_launchables_for_valid_region_zones(cheapest)
    except requests.RequestException as error:
        raise NoPrices("SkyPilot's catalogs are missing here and cannot be downloaded; check the network") from error
    except (exceptions.NoCloudAccessError, ImportError) as error:  # ImportError: a cloud's library is missing
        raise NoPrices(f"SkyPilot can't look up prices here: {error}") from error


def _is_cluster(cloud: Any) -> bool:
    return not is_rented(str(cloud))


def _offer(machine: sky.Resources, choice: dict[str, Any], nodes: int) -> tuple[Offer | None, dict[str, Any]]:
    """A machine as an offer and as `resources:` that allow no other; the offer is None if there is no price."""
    accelerator, count = next(iter((machine.accelerators or {}).items()), (None, 0))
    cloud, named = str(machine.cloud).lower(), str(choice.get("infra", ""))
    # a zone that the recipe names, and a Slurm partition, stay as they are
    place = named if named.count("/") > 1 else "/".join(filter(None, (cloud, machine.region)))
    prices = [_price(machine, use_spot, nodes) for use_spot in (True, False)]
    if prices[0 if machine.use_spot else 1] is None:
        return None, {}
    instance = None if _is_cluster(cloud) else machine.instance_type
    offer = Offer(place, instance, accelerator, count, nodes, machine.use_spot, *prices)
    resources = choice | {"infra": place} | ({"instance_type": instance} if instance else {})
    return offer, resources


def _price(machine: sky.Resources, use_spot: bool, nodes: int) -> float | None:
    if machine.instance_type is None:  # a cluster that could not be queried
        return 0.0
    try:
        if use_spot and machine.cloud:  # some catalogs fail an assertion on unsupported spot machines
            machine.cloud.check_features_are_supported(machine, {CloudImplementationFeatures.SPOT_INSTANCE})
        price = machine.copy(use_spot=use_spot).get_cost(3600)
    except (exceptions.NotSupportedError, ValueError):  # ValueError: not in the catalog
        return None
    return nodes * price if price == price else None  # NaN
