"""Facts of runs, from MLflow's tables: tags, parameters, metrics, curves, registry versions."""

import json
import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, literal, or_, select
from sqlalchemy.engine import Connection

from infra.charts import Points
from infra.lineage.database import (
    ALIASES,
    LATEST,
    METRICS,
    PARAMS,
    RUNS,
    TAGS,
    VERSION_TAGS,
    VERSIONS,
    among,
    rows,
)

CURVE_POINTS = 1000  # of a curve that is longer, about so many are read
LARGEST = 1e300  # beyond it, and not a number, is nothing to draw
PRICE = "baton.placed.price_per_hour"
NOT_CURVES = ("output/", "duration_s")

FIRST = ("loss", "validation_loss", "reward", "kl", "mfu", "tokens_per_s", "lr", "grad_norm")
METRIC = "baton.metric."  # + name: a tag of the run that measured it (see infra/tracking/words.py)
UNITS = {"argmax_agreement": "share"}  # of facts that are no metrics
HEADLINE = "baton.fact.headline"  # a tag of an evaluation: the metric that its pages show first


@dataclass(frozen=True)
class Unit:
    """How a metric is shown, and whether more of it is better."""

    unit: str = ""
    higher_is_better: bool = True


def tags(connection: Connection, runs: Collection[str], *keys: str) -> dict[str, dict[str, str]]:
    """The tags of runs; only some, where they are named."""
    query = select(TAGS.c.run_uuid, TAGS.c.key, TAGS.c.value).where(TAGS.c.run_uuid.in_(among("runs")))
    return _by_run(rows(connection, query.where(TAGS.c.key.in_(keys)) if keys else query, runs=runs))


def units(connection: Connection, runs: Collection[str]) -> dict[str, dict[str, Unit]]:
    """Of each run, what it said of the metrics that it measured, by their names."""
    query = select(TAGS.c.run_uuid, TAGS.c.key, TAGS.c.value).where(
        TAGS.c.run_uuid.in_(among("runs")), TAGS.c.key.startswith(METRIC, autoescape=True)
    )
    found: dict[str, dict[str, Unit]] = defaultdict(dict)
    for run, key, value in rows(connection, query, runs=runs):
        found[run][key.removeprefix(METRIC)] = unit_of(value)
    return found


def unit_of(told: str) -> Unit:
    """What a tag says of a metric."""
    try:
        found = json.loads(told)
        return Unit(str(found["unit"]), bool(found["higher_is_better"]))
    except (ValueError, TypeError, KeyError):
        return Unit()  # somebody else's tag


def params(connection: Connection, runs: Collection[str]) -> dict[str, dict[str, str]]:
    query = select(PARAMS.c.run_uuid, PARAMS.c.key, PARAMS.c.value).where(PARAMS.c.run_uuid.in_(among("runs")))
    return _by_run(rows(connection, query, runs=runs))


def metrics(connection: Connection, runs: Collection[str], *keys: str) -> dict[str, dict[str, float]]:
    """The latest value of each metric that is a number."""
    query = select(LATEST.c.run_uuid, LATEST.c.key, LATEST.c.value).where(
        LATEST.c.run_uuid.in_(among("runs")), LATEST.c.is_nan == literal(False)
    )
    return _by_run(rows(connection, query.where(LATEST.c.key.in_(keys)) if keys else query, runs=runs))


def curves(connection: Connection, run: str) -> dict[str, Points]:
    """Each metric over the steps, those with one value left out; long ones thinned to every k-th step."""
    sizes = select(METRICS.c.key, func.count()).where(METRICS.c.run_uuid == run).group_by(METRICS.c.key)
    found: dict[str, Points] = {}
    for name, size in sorted(connection.execute(sizes).all(), key=lambda row: (_rank(row[0]), row[0])):
        if size < 2 or name.startswith(NOT_CURVES):
            continue
        query = select(METRICS.c.step, METRICS.c.value).where(
            METRICS.c.run_uuid == run, METRICS.c.key == name, METRICS.c.is_nan == literal(False)
        )
        every = math.ceil(size / CURVE_POINTS)
        if every > 1:
            query = query.where(METRICS.c.step % every == 0)
        points = [(float(step), float(value)) for step, value in connection.execute(query.order_by(METRICS.c.step))]
        points = [point for point in points if abs(point[1]) < LARGEST]
        if len(points) > 1:
            found[name] = points
    return found


def with_param(connection: Connection, name: str, value: str) -> set[str]:
    query = select(PARAMS.c.run_uuid).where(PARAMS.c.key == name, PARAMS.c.value == value)
    return set(connection.execute(query).scalars())


def with_tag(connection: Connection, name: str, value: str) -> set[str]:
    """The runs with a tag of this value; one that ends in % may go on as it likes."""
    column = TAGS.c.value
    match = column.startswith(value[:-1], autoescape=True) if value.endswith("%") else column == value
    return set(connection.execute(select(TAGS.c.run_uuid).where(TAGS.c.key == name, match)).scalars())


def mlflow_page(connection: Connection, run: str) -> str:
    """Where MLflow's own pages have a run."""
    experiment = connection.execute(select(RUNS.c.experiment_id).where(RUNS.c.run_uuid == run)).scalar_one()
    return f"/#/experiments/{experiment}/runs/{run}"


def versions(connection: Connection) -> list[dict[str, Any]]:
    """The model registry's versions, newest first: name, version, when, aliases, tags."""
    aliases: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name, version, alias in connection.execute(select(ALIASES.c.name, ALIASES.c.version, ALIASES.c.alias)):
        aliases[name, version].append(alias)
    told: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    query = select(VERSION_TAGS.c.name, VERSION_TAGS.c.version, VERSION_TAGS.c.key, VERSION_TAGS.c.value)
    for name, version, key, value in connection.execute(query.where(VERSION_TAGS.c.key.startswith("baton."))):
        told[name, version][key] = value
    found = select(VERSIONS.c.name, VERSIONS.c.version, VERSIONS.c.creation_time, VERSIONS.c.description).where(
        or_(VERSIONS.c.current_stage.is_(None), VERSIONS.c.current_stage != "Deleted_Internal")
    )
    return [
        {
            "name": name,
            "version": version,
            "when": when / 1000,
            "description": description or "",
            "aliases": sorted(aliases[name, version]),
            "tags": told[name, version],
        }
        for name, version, when, description in connection.execute(
            found.order_by(VERSIONS.c.creation_time.desc(), VERSIONS.c.version.desc())
        )
    ]


def _rank(name: str) -> int:
    """What is looked at first comes first."""
    return FIRST.index(name) if name in FIRST else len(FIRST)


def cost(tags: dict[str, str], measured: dict[str, float], seconds: float | None) -> float | None:
    """What a run cost in US dollars: as measured, or its hours at the price of its placement."""
    if "cost_usd" in measured:
        return measured["cost_usd"]
    try:
        return float(tags[PRICE]) * (seconds or 0.0) / 3600
    except (KeyError, ValueError):
        return None


def group(tags: dict[str, str], name: str) -> dict[str, str]:
    """The tags `baton.<name>.…`, by what follows."""
    prefix = f"baton.{name}."
    return {key.removeprefix(prefix): value for key, value in sorted(tags.items()) if key.startswith(prefix)}


def _by_run(found: Any) -> dict[str, dict[str, Any]]:
    by_run: dict[str, dict[str, Any]] = defaultdict(dict)
    for run, key, value in found:
        by_run[run][key] = value
    return by_run
