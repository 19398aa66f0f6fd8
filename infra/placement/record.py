"""Read SkyPilot's record of a managed job: its place, its price, and the limit that it exceeds, if any."""

import re
from typing import Any

import requests
from sky.schemas.api.responses import ManagedJobRecord

from baton.infra.placement.config import Placement
from baton.infra.placement.skypilot import sky
from baton.infra.text import brief

# SkyPilot's description of a job's machines: "2x[spot](gpus=H100:8, cpus=192, mem=2048, p5.48xlarge, disk=256)"
DESCRIBED = re.compile(r"(?P<nodes>\d+)x(?P<spot>\[spot\])?\((?P<words>.*)\)")


def where(record: ManagedJobRecord) -> dict[str, Any]:
    """A job's place and price, for the stage's record."""
    facts = {
        "job_id": record.job_id,
        "cloud": record.cloud,
        "region": record.region,
        "zone": record.zone,
        "cluster": record.current_cluster_name,
        "resources": record.cluster_resources,
        "machine": _machine(record),
        "price_per_hour": price_per_hour(record),
        "recoveries": record.recovery_count,
    }
    if record.end_at and record.job_duration:
        facts |= {"seconds": round(record.job_duration), "cost": _cost(record)}
    return {name: value for name, value in facts.items() if value not in (None, "", "-")}


def summary(facts: dict[str, Any]) -> str:
    """An ended job in words, from `where`: 14 min on aws/us-west-2 (m6i.large spot), $0.02, recovered once."""
    place = _place(*(str(facts.get(name, "")) for name in ("cloud", "region", "zone")))
    machine, times = facts.get("machine") or facts.get("resources"), int(facts.get("recoveries", 0))
    parts = [
        " ".join(
            ([f"{brief(facts['seconds']):>10}"] if "seconds" in facts else [])
            + ([f"on {place}"] if place else [])
            + ([f"({machine})"] if place and machine else [])
        ),
        _dollars(facts["cost"], exact=not times) if "cost" in facts else "",
        f"recovered {'once' if times == 1 else f'{times} times'}" if times else "",
    ]
    return ", ".join(filter(None, parts))


def _dollars(cost: float, exact: bool) -> str:
    """Format a cost. It is not `exact` if the job was in several places, since the price is that of the last one."""
    return "less than $0.01" if cost < 0.005 else f"{'' if exact else 'about '}${cost:.2f}"


def _place(cloud: str, region: str, zone: str) -> str:
    """Format a place as in `placement.infra`: aws/us-west-2, slurm/alpha/cpu."""
    parts = (cloud.lower(), region, "" if zone.startswith(region) else zone)
    return "/".join(word for word in parts if word not in ("", "-"))


def message(record: ManagedJobRecord, state: str, has_machine: bool = True) -> str:
    """A job in one line: its id, `state`, place and cost, if it has a machine and is not only trying to get
    one."""
    if not has_machine:
        return f"job {record.job_id} {state}"
    place = "/".join(filter(None, (record.cloud, record.region, record.zone)))
    on = f" on {place} ({record.cluster_resources})" if place and record.cluster_resources not in (None, "-") else ""
    recoveries = f", recovered {record.recovery_count} times" if record.recovery_count else ""
    price = price_per_hour(record)
    cost = f", ${price:.2f} per hour" if price else ""
    if price and record.end_at:
        cost += f", ${price * (record.job_duration or 0) / 3600:.2f} in total"
    return f"job {record.job_id} {state}{on}{cost}{recoveries}"


def _instance(record: ManagedJobRecord) -> tuple[int, str, bool] | None:
    """Return the number and type of a job's machines, and whether they are spot machines."""
    described = DESCRIBED.fullmatch(record.cluster_resources_full or "")
    parts = described["words"].split(", ") if described else []
    instance = next((word for word in parts if "=" not in word and word != "..."), None)
    return (int(described["nodes"]), instance, bool(described["spot"])) if described and instance else None


def _machine(record: ManagedJobRecord) -> str | None:
    """A job's machines in words: 2 × p5.48xlarge spot."""
    if (found := _instance(record)) is None:
        return None
    nodes, instance, spot = found
    return f"{f'{nodes} × ' if nodes > 1 else ''}{instance}{' spot' if spot else ''}"


def with_machine(record: ManagedJobRecord, before: ManagedJobRecord | None) -> ManagedJobRecord:
    """The record of an ended job with the machine of a record `before` it. SkyPilot describes a job whose machines are
    gone by the resources that it asked for, which have no price."""
    if before is None or before.job_id != record.job_id or not record.end_at:
        return record
    if _instance(record) or not _instance(before):
        return record
    machine = ("cluster_resources", "cluster_resources_full", "accelerators")
    return record.model_copy(update={name: getattr(before, name) for name in machine})


def price_per_hour(record: ManagedJobRecord) -> float | None:
    """The price of a job's machines in US dollars per hour, by SkyPilot's catalog; None if the catalog does not have
    them, or there is no catalog here."""
    if (found := _instance(record)) is None:
        return None
    nodes, instance, spot = found
    place = "/".join(filter(None, (record.cloud, record.region, record.zone)))
    try:
        machine = sky.Resources(infra=place, instance_type=instance, accelerators=record.accelerators, use_spot=spot)
        return nodes * float(machine.get_cost(3600))
    except (requests.RequestException, ValueError):  # the catalog cannot be downloaded, or differs from the server's
        return None


def _cost(record: ManagedJobRecord) -> float | None:
    """The cost of an ended job in US dollars."""
    price = price_per_hour(record)
    return round(price * (record.job_duration or 0) / 3600, 4) if price else None


def unchecked_limit(limits: Placement, record: ManagedJobRecord) -> str | None:
    """The price limit that cannot be checked while a job runs, since the price of its machine is unknown here."""
    if (found := _instance(record)) is None or price_per_hour(record) is not None:
        return None
    named = [name for name in ("max_price_per_hour", "max_price_per_run") if getattr(limits, name) is not None]
    return f"placement.{' and '.join(named)} not checked: no price of {found[1]} here" if named else None


def over_limit(limits: Placement, record: ManagedJobRecord) -> str | None:
    """The limit of the placement that a job exceeds, if any. SkyPilot has no limit for a run's price, and its hourly
    limit leaves out accelerators that are priced separately from the machine."""
    hours, price = (record.job_duration or 0) / 3600, price_per_hour(record) or 0.0
    for name, value, limit in (
        ("time_limit_h", hours, limits.time_limit_h),
        ("max_price_per_hour", price, limits.max_price_per_hour),
        ("max_price_per_run", price * hours, limits.max_price_per_run),
    ):
        if limit is not None and value > limit:
            return f"placement.{name} is {limit:g}, and the job has reached {value:.4g}"
    return None
