"""Facts of runs, from MLflow's tables: tags, parameters, metrics, curves, registry versions."""

import json
import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from sqlalchemy import and_, func, literal, or_, select
from sqlalchemy.engine import Connection

from baton.infra.drawing.charts import LARGEST, Points
from baton.infra.lineage.database import (
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
from baton.infra.tracking.mlflow_names import mlflow_name, original_name
from baton.infra.tracking.mlflow_records import ANNOTATION_TAG, METRIC_TAG, NOTE_TAG, OUTPUT, USER_TAG
from baton.infra.tracking.set_aside import set_aside

DEEPEST = 50  # levels of JSON
END_OF_TIME = 253_402_300_799.0  # 9999-12-31T23:59:59Z
CURVE_POINTS = 1000  # about as many points are read of a longer curve
PRICE = "baton.placed.price_per_hour"
NOT_CURVES = (OUTPUT, "duration_s")

FIRST = ("loss", "validation_loss", "reward", "kl", "mfu", "tokens_per_s", "lr", "learning_rate", "grad_norm")
UNITS = {"argmax_agreement": "share"}  # units of facts that are not metrics
NAMES = ("baton.fact.label", "baton.fact.registry_name")  # tags with the names of models
FACTS, AFTER_FACTS = "baton.fact.", "baton.fact/"  # the range of keys with the prefix: "/" follows "."
AFTER_ANNOTATIONS = "baton.tag/"
HEADLINE = "baton.fact.headline"  # tag of an evaluation: the metric that is shown first


@dataclass(frozen=True)
class Unit:
    """The unit and direction of a metric, with the uncertainty of its value."""

    unit: str = ""
    higher_is_better: bool | None = True  # None if not known
    standard_error: float | None = None  # the value's
    count: int = 0  # number of rows, documents, … on which the metric was measured


def tags(connection: Connection, runs: Collection[str], *keys: str) -> dict[str, dict[str, str]]:
    """Return the tags of runs, or only those with the given keys."""
    query = select(TAGS.c.run_uuid, TAGS.c.key, TAGS.c.value).where(TAGS.c.run_uuid.in_(among("runs")))
    return _by_run(rows(connection, query.where(TAGS.c.key.in_(keys)) if keys else query, runs=runs))


def units(connection: Connection, runs: Collection[str]) -> dict[str, dict[str, Unit]]:
    """Return, for each run, the unit of each metric that it measured."""
    query = select(TAGS.c.run_uuid, TAGS.c.key, TAGS.c.value).where(
        TAGS.c.run_uuid.in_(among("runs")), TAGS.c.key.startswith(METRIC_TAG, autoescape=True)
    )
    by_run: dict[str, dict[str, Unit]] = defaultdict(dict)
    for run, key, value in rows(connection, query, runs=runs):
        by_run[run][original_name(key.removeprefix(METRIC_TAG))] = unit_of(value)
    return by_run


def unit_of(tag: str) -> Unit:
    """Parse a metric's tag."""
    try:
        fields = dict(from_json(tag))
        error = None if fields.get("standard_error") is None else float(fields["standard_error"])
        known = error is not None and math.isfinite(error)
        better = fields["higher_is_better"]
        return Unit(
            str(fields["unit"]),
            None if better is None else bool(better),
            error if known else None,
            int(fields.get("count", 0)),
        )
    except (ValueError, TypeError, KeyError):
        return Unit()  # not written by Baton


def from_json(text: str) -> Any:
    """Parse JSON in the store, which anyone may have written. Raises ValueError, also if it is nested too deeply."""
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
    level, depth = [content], 0
    while level := [
        inner
        for item in level
        if isinstance(item, dict | list)
        for inner in (item.values() if isinstance(item, dict) else item)
    ]:
        depth += 1
        if depth > DEEPEST:
            raise ValueError("JSON is nested too deeply")
    return content


def json_or(text: str, otherwise: Any = None) -> Any:
    """`from_json`, or `otherwise` if it refuses the text: a value that was cut, or that Baton did not write."""
    try:
        return from_json(text)
    except ValueError:
        return otherwise


def seconds(milliseconds: float | None) -> float:
    """A time of the store in seconds since the epoch, within the range of a calendar."""
    return min(max((milliseconds or 0) / 1000, 0.0), END_OF_TIME)


def params(connection: Connection, runs: Collection[str]) -> dict[str, dict[str, str]]:
    query = select(PARAMS.c.run_uuid, PARAMS.c.key, PARAMS.c.value).where(PARAMS.c.run_uuid.in_(among("runs")))
    return _by_run(rows(connection, query, runs=runs))


def metrics(connection: Connection, runs: Collection[str], *keys: str) -> dict[str, dict[str, float]]:
    """The latest value of each metric, without values that are not a number or are too large."""
    keys = tuple(map(_stored, keys))
    query = select(LATEST.c.run_uuid, LATEST.c.key, LATEST.c.value).where(
        LATEST.c.run_uuid.in_(among("runs")), LATEST.c.is_nan == literal(False)
    )
    values = rows(connection, query.where(LATEST.c.key.in_(keys)) if keys else query, runs=runs)
    return _by_run((run, key, value) for run, key, value in values if abs(value) < LARGEST)


def of_output(metrics: dict[str, float]) -> dict[str, float]:
    """The numbers among the facts of a run's output, by the facts' names."""
    return {name.removeprefix(OUTPUT): value for name, value in metrics.items() if name.startswith(OUTPUT)}


def curves(
    connection: Connection, run: str, since: float | None = None, only: Collection[str] = ()
) -> dict[str, Points]:
    """Each metric (or `only` some) over the steps, or over the seconds since `since`. The newest value of a repeated
    step counts, as after a roll-back. Metrics with a single value are left out, and only every k-th step of a long
    curve is read."""
    sizes = select(METRICS.c.key, func.count()).where(METRICS.c.run_uuid == run).group_by(METRICS.c.key)
    points_by_metric: dict[str, Points] = {}
    for key, size in sorted(connection.execute(sizes).all(), key=lambda row: (_rank(row[0]), row[0])):
        name = original_name(key)
        if size < 2 or name.startswith(NOT_CURVES) or (only and name not in only):
            continue
        query = select(METRICS.c.step, METRICS.c.timestamp, METRICS.c.value, METRICS.c.is_nan).where(
            METRICS.c.run_uuid == run, METRICS.c.key == key
        )
        every = math.ceil(size / CURVE_POINTS)
        if every > 1:
            query = query.where(METRICS.c.step % every == 0)
        newest = {row[0]: row for row in connection.execute(query.order_by(METRICS.c.timestamp))}
        points = [
            (float(step) if since is None else max(0.0, timestamp / 1000 - since), float(value))
            for step, timestamp, value, is_nan in newest.values()
            if not is_nan and abs(value) < LARGEST
        ]
        if len(points) > 1:
            points_by_metric[name] = sorted(points)
    return points_by_metric


def with_param(connection: Connection, name: str, value: str) -> set[str]:
    """The runs with a parameter of this value. A name below a list has numbers: `post_training.0.sft.steps`."""
    names = name.split(".")
    inner = {mlflow_name(".".join(names[:at])): names[at:] for at in range(1, len(names) + 1)}
    query = select(PARAMS.c.run_uuid, PARAMS.c.key, PARAMS.c.value).where(PARAMS.c.key.in_(inner))
    return {run for run, key, stored in connection.execute(query) if _is_at(inner[key], stored, value)}


def _is_at(names: list[str], stored: str, value: str) -> bool:
    """Return whether a stored parameter, or the item in it under these names, equals a value in any notation."""
    found = json_or(stored, stored)
    for name in names:
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, IndexError, TypeError, ValueError):
            return False
    wanted = json_or(value, value)
    if value in (found, None if names else stored):
        return True
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)  # true is not 1


def naming_models(connection: Connection, word: str) -> set[str]:
    """The runs that made or read a model with this word in its name, in any case."""
    named = select(TAGS.c.run_uuid).where(
        TAGS.c.key.in_(NAMES), func.lower(TAGS.c.value).contains(word, autoescape=True)
    )
    read = select(PARAMS.c.run_uuid).where(
        or_(PARAMS.c.key == "model", PARAMS.c.key.endswith(".model")),
        func.lower(PARAMS.c.value).contains(word, autoescape=True),
    )
    return {*connection.execute(named).scalars(), *connection.execute(read).scalars()}


def with_tag(connection: Connection, name: str, value: str, *, prefix: bool = False) -> set[str]:
    """The runs with a tag of this value, or of one that begins with it."""
    column = TAGS.c.value
    match = column.startswith(value, autoescape=True) if prefix else column == value
    return set(connection.execute(select(TAGS.c.run_uuid).where(TAGS.c.key == name, match)).scalars())


def annotated(connection: Connection, text: str, tag: str | None = None) -> set[str]:
    """The executions with this text, in lower case, in their user, note or tags; or with a `tag` of this value."""
    value, key = func.lower(TAGS.c.value), TAGS.c.key
    if tag is not None:
        match = and_(key == ANNOTATION_TAG + mlflow_name(tag), value == text, value != "")
        return set(connection.execute(select(TAGS.c.run_uuid).where(match)).scalars())
    tags = and_(key >= ANNOTATION_TAG, key < AFTER_ANNOTATIONS, value != "")
    named = func.lower(func.substr(key, len(ANNOTATION_TAG) + 1))
    match = or_(
        and_(key.in_((USER_TAG, NOTE_TAG)), value.contains(text, autoescape=True)),
        and_(tags, or_(value.contains(text, autoescape=True), named.contains(text, autoescape=True))),
    )
    return set(connection.execute(select(TAGS.c.run_uuid).where(match)).scalars())


def annotations(connection: Connection, runs: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the user, the note and the tags of executions."""
    key = TAGS.c.key
    wanted = or_(key.in_((USER_TAG, NOTE_TAG)), and_(key >= ANNOTATION_TAG, key < AFTER_ANNOTATIONS))
    query = select(TAGS.c.run_uuid, key, TAGS.c.value).where(TAGS.c.run_uuid.in_(among("runs")), wanted)
    tags = _by_run(rows(connection, query, runs=runs))
    return {
        run: {
            "user": own.get(USER_TAG, ""),
            "note": own.get(NOTE_TAG, ""),
            "tags": {
                name.removeprefix(ANNOTATION_TAG): value
                for name, value in sorted(own.items())
                if name.startswith(ANNOTATION_TAG) and value
            },
        }
        for run in runs
        for own in [tags.get(run, {})]
    }


def mentioning(connection: Connection, text: str) -> set[str]:
    """The runs with this text, in lower case, in a value of their recipe, their spec, or a fact of their output."""
    params = select(PARAMS.c.run_uuid).where(func.lower(PARAMS.c.value).contains(text, autoescape=True))
    facts = select(TAGS.c.run_uuid).where(
        TAGS.c.key >= FACTS, TAGS.c.key < AFTER_FACTS, func.lower(TAGS.c.value).contains(text, autoescape=True)
    )
    return {*connection.execute(params).scalars(), *connection.execute(facts).scalars()}


def mlflow_page(connection: Connection, run: str) -> str:
    """The address of a run's page in MLflow."""
    experiment = connection.execute(select(RUNS.c.experiment_id).where(RUNS.c.run_uuid == run)).scalar_one()
    return f"/#/experiments/{experiment}/runs/{run}"


def mlflow_runs(connection: Connection, execution: str, run: str) -> str:
    """The address of MLflow's list of the runs of an execution, whose own run is `run`."""
    experiment = connection.execute(select(RUNS.c.experiment_id).where(RUNS.c.run_uuid == run)).scalar_one()
    only = quote(f"tags.`baton.execution` = '{execution}'")
    return f"/#/experiments/{experiment}/runs?searchFilter={only}"


def versions(connection: Connection) -> list[dict[str, Any]]:
    """The model registry's versions, newest first: name, version, when, aliases, tags, set_aside."""
    aliases: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name, version, alias in connection.execute(select(ALIASES.c.name, ALIASES.c.version, ALIASES.c.alias)):
        aliases[name, version].append(alias)
    tags: dict[tuple[str, int], dict[str, str]] = defaultdict(dict)
    query = select(VERSION_TAGS.c.name, VERSION_TAGS.c.version, VERSION_TAGS.c.key, VERSION_TAGS.c.value)
    for name, version, key, value in connection.execute(query.where(VERSION_TAGS.c.key.startswith("baton."))):
        tags[name, version][original_name(key)] = value
    query = select(VERSIONS.c.name, VERSIONS.c.version, VERSIONS.c.creation_time, VERSIONS.c.description).where(
        or_(VERSIONS.c.current_stage.is_(None), VERSIONS.c.current_stage != "Deleted_Internal")
    )
    rows = connection.execute(query.order_by(VERSIONS.c.creation_time.desc(), VERSIONS.c.version.desc())).all()
    champions = {name: version for (name, version), given in aliases.items() if "champion" in given}
    by_name: dict[str, dict[int, dict[str, str]]] = defaultdict(dict)  # without deleted versions, whose tags stay
    for name, version, _, _ in rows:
        by_name[name][version] = tags[name, version]
    aside = {name: set_aside(own, champions.get(name)) for name, own in by_name.items()}
    return [
        {
            "name": name,
            "version": version,
            "when": seconds(when),
            "description": description or "",
            "aliases": sorted(aliases[name, version]),
            "tags": tags[name, version],
            "set_aside": version in aside[name],
        }
        for name, version, when, description in rows
    ]


def _rank(name: str) -> int:
    """Rank the metrics that readers look at first before the others."""
    return FIRST.index(name) if name in FIRST else len(FIRST)


def cost(tags: dict[str, str], measured: dict[str, float], seconds: float | None) -> float | None:
    """The cost of a run in US dollars: as measured, or its hours at the price of its placement."""
    if "cost_usd" in measured:
        return measured["cost_usd"]
    try:
        return float(tags[PRICE]) * (seconds or 0.0) / 3600
    except (KeyError, ValueError):
        return None


def group(tags: dict[str, str], name: str) -> dict[str, str]:
    """The tags `baton.<name>.…`, without that prefix."""
    prefix = f"baton.{name}."
    return {key.removeprefix(prefix): value for key, value in sorted(tags.items()) if key.startswith(prefix)}


def _by_run(entries: Any) -> dict[str, dict[str, Any]]:
    by_run: dict[str, dict[str, Any]] = defaultdict(dict)
    for run, key, value in entries:
        by_run[run][original_name(key)] = value
    return by_run


def _stored(name: str) -> str:
    """A metric's name in MLflow."""
    return f"{OUTPUT}{mlflow_name(name.removeprefix(OUTPUT))}" if name.startswith(OUTPUT) else mlflow_name(name)
