"""Read SkyPilot's record of a managed job: where it runs, at what price, and whether it exceeds a limit."""

import re
from typing import Any

import requests
import sky
from sky.schemas.api.responses import ManagedJobRecord

from infra.placement.config import Placement

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
        "price_per_hour": price_per_hour(record),
        "recoveries": record.recovery_count,
    }
    return {name: value for name, value in facts.items() if value not in (None, "", "-")}


def message(record: ManagedJobRecord, words: str) -> str:
    """A job in one line: its id, state (`words`), place and cost."""
    place = "/".join(filter(None, (record.cloud, record.region, record.zone)))
    on = f" on {place} ({record.cluster_resources})" if place and record.cluster_resources not in (None, "-") else ""
    recoveries = f", recovered {record.recovery_count} times" if record.recovery_count else ""
    price = price_per_hour(record)
    cost = f", ${price:.2f} per hour" if price else ""
    if price and record.end_at:
        cost += f", ${price * (record.job_duration or 0) / 3600:.2f} in total"
    return f"job {record.job_id} {words}{on}{cost}{recoveries}"


def price_per_hour(record: ManagedJobRecord) -> float | None:
    """The price of a job's machines in US dollars, by SkyPilot's catalog; None: not in the catalog, or there is none
    here."""
    described = DESCRIBED.fullmatch(record.cluster_resources_full or "")
    words = described["words"].split(", ") if described else []
    instance = next((word for word in words if "=" not in word and word != "..."), None)
    if described is None or instance is None:
        return None
    place = "/".join(filter(None, (record.cloud, record.region, record.zone)))
    try:
        machine = sky.Resources(
            infra=place, instance_type=instance, accelerators=record.accelerators, use_spot=bool(described["spot"])
        )
        return int(described["nodes"]) * float(machine.get_cost(3600))
    except (requests.RequestException, ValueError):  # it cannot be downloaded, or is another than the server's
        return None


def over_limit(limits: Placement, record: ManagedJobRecord) -> str | None:
    """The limit of the placement that a job exceeds, if any. SkyPilot has no limit for a run's price, and its hourly
    limit leaves out accelerators that are priced apart from the machine."""
    hours, price = (record.job_duration or 0) / 3600, price_per_hour(record) or 0.0
    for name, value, limit in (
        ("time_limit_h", hours, limits.time_limit_h),
        ("max_price_per_hour", price, limits.max_price_per_hour),
        ("max_price_per_run", price * hours, limits.max_price_per_run),
    ):
        if limit is not None and value > limit:
            return f"placement.{name} is {limit:g}, and the job has reached {value:.4g}"
    return None
