"""What a placement costs: the places where SkyPilot would try it, in its order, with their prices.

They come from SkyPilot's own optimizer and catalogs, in this process: what was chosen is blocked, and
it chooses again, as it does when there is no capacity. A region's zones count as one place. Import
this only where there is a placement: it loads SkyPilot, some seconds.
"""

from dataclasses import dataclass
from typing import Any

import requests
import sky
from sky import exceptions, global_user_state, optimizer, sky_logging, skypilot_config
from sky.clouds.cloud import CloudCapability, CloudImplementationFeatures

from infra.placement.config import Placement

MOST = 10  # places; whoever finds none of the first so many has other worries


class NoPrices(Exception):
    """Prices cannot be looked up here; the message says why and what to do."""


@dataclass(frozen=True)
class Offer:
    """One place. Prices are in US dollars an hour, of all nodes together; None: it has no such machines."""

    place: str  # aws/us-east-1
    instance: str | None  # on Kubernetes and Slurm there is none
    accelerator: str | None
    count: float  # of them on each node
    nodes: int
    spot: bool  # what would be tried
    spot_price: float | None
    on_demand_price: float | None

    @property
    def price(self) -> float:
        price = self.spot_price if self.spot else self.on_demand_price
        assert price is not None  # the optimizer chooses nothing that has no price
        return price

    def words(self) -> str:
        chips = f"{self.count:g} {self.accelerator}" if self.accelerator else "no accelerator"
        times = f"{self.nodes} x " if self.nodes > 1 else ""
        return f"{self.place} {times}{self.instance or 'nodes'} ({chips}), {'spot' if self.spot else 'on-demand'}"


def offers(placement: Placement, most: int = MOST) -> list[Offer]:
    """The first `most` places in SkyPilot's order; empty: there is none. Raises NoPrices, and ValueError when
    SkyPilot does not take the placement."""
    found: list[Offer] = []
    tried: list[sky.Resources] = []
    with sky_logging.silent():
        resources = placement.resources(clouds=_clouds())
        while len(found) < most and (best := _best(resources, placement.nodes, tried)):
            found.append(_offer(best, placement.nodes))
            tried.append(
                sky.Resources(
                    cloud=best.cloud,
                    region=best.region,
                    instance_type=best.instance_type,
                    accelerators=best.accelerators,
                    use_spot=best.use_spot,
                )
            )
    return found


def _clouds() -> list[str]:
    """Those that SkyPilot has found access to. If there were none, it would look for all of them, for minutes.
    Raises NoPrices."""
    global_user_state.initialize_and_get_db()
    workspace = skypilot_config.get_active_workspace()
    found = global_user_state.get_cached_enabled_clouds(CloudCapability.COMPUTE, workspace)
    if not found:
        raise NoPrices("SkyPilot knows no cloud on this machine; `sky check` looks for the credentials that are here")
    return [str(cloud).lower() for cloud in found]


def _best(resources: dict[str, Any], nodes: int, tried: list[sky.Resources]) -> sky.Resources | None:
    """Where SkyPilot would go when there is no capacity in what was tried."""
    task = sky.Task.from_yaml_config({"num_nodes": nodes, "run": "true", "resources": resources})
    with sky.Dag() as dag:
        dag.add(task)
    try:
        optimizer.Optimizer.optimize(dag, blocked_resources=tried, quiet=True)
    except exceptions.ResourcesUnavailableError:
        return None
    except requests.RequestException as error:
        raise NoPrices("SkyPilot's catalogs are not here and cannot be fetched; is there a network?") from error
    except (exceptions.NoCloudAccessError, ImportError) as error:  # ImportError: a cloud's own library is not here
        raise NoPrices(f"SkyPilot cannot look them up here: {error}") from error
    return task.best_resources


def _offer(best: sky.Resources, nodes: int) -> Offer:
    accelerator, count = next(iter((best.accelerators or {}).items()), (None, 0))
    place = "/".join(filter(None, (str(best.cloud).lower(), best.region)))
    spot, on_demand = (_price(best, use_spot, nodes) for use_spot in (True, False))
    return Offer(place, best.instance_type, accelerator, count, nodes, best.use_spot, spot, on_demand)


def _price(best: sky.Resources, use_spot: bool, nodes: int) -> float | None:
    try:
        if use_spot and best.cloud:  # some catalogs assert that nobody asks
            best.cloud.check_features_are_supported(best, {CloudImplementationFeatures.SPOT_INSTANCE})
        price = best.copy(use_spot=use_spot).get_cost(3600)
    except (exceptions.NotSupportedError, ValueError):  # ValueError: the catalog has none
        return None
    return nodes * price if price == price else None  # NaN
