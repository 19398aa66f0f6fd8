"""Read what W&B's offline folders and TensorBoard's files have, with the libraries of both."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record
from wandb.sdk.internal.datastore import DataStore

Curve = list[tuple[int, float]]


@dataclass(frozen=True)
class WandbRun:
    """A run of an offline folder."""

    name: str
    group: str
    config: dict[str, Any]
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    exit_code: int | None

    def curve(self, name: str) -> Curve:
        return [(row["step"], row[name]) for row in self.history if name in row]


def wandb_runs(home: Path) -> dict[str, WandbRun]:
    """The runs of all offline folders, by the names of their stages; the execution's by its group's."""
    found = {}
    for path in sorted(home.glob("wandb/offline-run-*/run-*.wandb")):
        run = _wandb_run(path)
        assert run.name not in found, "a run in two folders"
        found[run.name] = run
    return found


def _wandb_run(path: Path) -> WandbRun:
    store = DataStore()
    store.open_for_scan(str(path))
    name = group = ""
    config: dict[str, Any] = {}
    history: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    exit_code = None
    while data := store.scan_data():
        record = Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            name, group = record.run.display_name, record.run.run_group
            config |= _items(record.run.config.update)
        elif record.HasField("config"):
            config |= _items(record.config.update)
        elif record.HasField("history"):
            history.append(_items(record.history.item))
        elif record.HasField("summary"):
            summary |= _items(record.summary.update)
        elif record.HasField("exit"):
            exit_code = record.exit.exit_code
    return WandbRun(name, group, config, history, summary, exit_code)


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def tensorboard(folder: Path) -> EventAccumulator:
    """What TensorBoard shows of a run's folder."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def tensorboard_curve(folder: Path, name: str) -> Curve:
    return [(point.step, point.value) for point in tensorboard(folder).Scalars(name)]
