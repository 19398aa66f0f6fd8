"""Prices of a placement: the places that SkyPilot would try, in its order.

They come from SkyPilot's own optimizer and catalogs, in this process: each chosen place is blocked and the optimizer
runs again, as it does when there is no capacity. A region's zones count as one place. Import this only if there is a
placement: loading SkyPilot takes some seconds.
"""

from dataclasses import dataclass
from typing import Any

import requests
import sky
from sky import exceptions, global_user_state, optimizer, sky_logging, skypilot_config
from sky.clouds.cloud import CloudCapability, CloudImplementationFeatures

from infra.placement.config import Placement

MOST = 10  # places


class NoPrices(Exception):
    """Prices can't be looked up here; the message says why and what to do."""


@dataclass(frozen=True)
class Offer:
    """One place. Prices are in US dollars per hour for all nodes; None: it has no such machines."""

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
        assert price is not None  # the optimizer only chooses offers with a price
        return price

    def words(self) -> str:
        chips = f"{self.count:g} {self.accelerator}" if self.accelerator else "no accelerator"
        times = f"{self.nodes} x " if self.nodes > 1 else ""
        return f"{self.place} {times}{self.instance or 'nodes'} ({chips}), {'spot' if self.spot else 'on-demand'}"


def offers(placement: Placement, most: int = MOST) -> list[Offer]:
    """The first `most` places in SkyPilot's order; empty if there is none. Raises NoPrices, and ValueError if SkyPilot
    rejects the placement."""
    best_offers: list[Offer] = []
    tried: list[sky.Resources] = []
    with sky_logging.silent():
        resources = placement.resources(clouds=_clouds())
        while len(best_offers) < most and (best := _best(resources, placement.nodes, tried)):
            best_offers.append(_offer(best, placement.nodes))
            tried.append(
                sky.Resources(
                    cloud=best.cloud,
                    region=best.region,
                    instance_type=best.instance_type,
                    accelerators=best.accelerators,
                    use_spot=best.use_spot,
                )
            )
    return best_offers


def _clouds() -> list[str]:
    """The clouds that SkyPilot has access to. Without any, its optimizer would check all clouds, for minutes. Raises
    NoPrices."""
    global_user_state.initialize_and_get_db()
    workspace = skypilot_config.get_active_workspace()
    clouds = global_user_state.get_cached_enabled_clouds(CloudCapability.COMPUTE, workspace)
    if not clouds:
        raise NoPrices("SkyPilot has no cloud enabled on this machine; run `sky check`, which looks for credentials")
    return [str(cloud).lower() for cloud in clouds]


def _best(resources: dict[str, Any], nodes: int, tried: list[sky.Resources]) -> sky.Resources | None:
    """SkyPilot's choice if the tried places have no capacity."""
    task = sky.Task.from_yaml_config({"num_nodes": nodes, "run": "true", "resources": resources})
    with sky.Dag() as dag:
        dag.add(task)
    try:
        optimizer.Optimizer.optimize(dag, blocked_resources=tried, quiet=True)
    except exceptions.ResourcesUnavailableError:
        return None
    except requests.RequestException as error:
        raise NoPrices("SkyPilot's catalogs are missing here and cannot be downloaded; is there a network?") from error
    except (exceptions.NoCloudAccessError, ImportError) as error:  # ImportError: a cloud's library is missing
        raise NoPrices(f"SkyPilot can't look them up here: {error}") from error
    return task.best_resources


def _offer(best: sky.Resources, nodes: int) -> Offer:
    accelerator, count = next(iter((best.accelerators or {}).items()), (None, 0))
    place = "/".join(filter(None, (str(best.cloud).lower(), best.region)))
    spot, on_demand = (_price(best, use_spot, nodes) for use_spot in (True, False))
    return Offer(place, best.instance_type, accelerator, count, nodes, best.use_spot, spot, on_demand)


def _price(best: sky.Resources, use_spot: bool, nodes: int) -> float | None:
    try:
        if use_spot and best.cloud:  # some catalogs fail an assertion on unsupported spot machines
            best.cloud.check_features_are_supported(best, {CloudImplementationFeatures.SPOT_INSTANCE})
        price = best.copy(use_spot=use_spot).get_cost(3600)
    except (exceptions.NotSupportedError, ValueError):  # ValueError: not in the catalog
        return None
    return nodes * price if price == price else None  # NaN
