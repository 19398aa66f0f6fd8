"""trackio: a run for each record in the local store that `trackio show` opens (TRACKIO_DIR), in the group of its
execution. The store is asked which points it has, so that none is added twice."""

import re
from typing import Any

import trackio
from trackio.sqlite_storage import SQLiteStorage

from baton.infra.tracking.sinks.runs import Row, Run
from baton.infra.tracking.store import experiment_name


class Trackio:
    def __init__(self, project: str) -> None:
        self.project = project
        self._has: dict[str, set[tuple[str, int]]] = {}  # the points of a run, by (name, step)

    def send(self, run: Run) -> None:
        name = f"{run.execution} {run.stage}" if run.stage else run.execution
        if name not in self._has:
            logs = SQLiteStorage.get_logs(self.project, name)
            self._has[name] = {(metric, log["step"]) for log in logs for metric in log}
        has = self._has[name]
        rows = [*run.rows, *([Row(run.last_step, run.ended, run.summary)] if run.ended is not None else [])]
        new = [(row.step, _new(row, has)) for row in rows]
        opened: Any = trackio.init(
            self.project,
            name,
            group=run.execution,
            config=run.params | {"baton": run.tags, "status": run.status},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        for step, values in new:
            if values:
                opened.log(values, step)
                has |= {(metric, step) for metric in values}
        opened.finish()

    def close(self) -> None:
        self._has.clear()


def _new(row: Row, has: set[tuple[str, int]]) -> dict[str, float]:
    return {name: value for name, value in row.values.items() if (name, row.step) not in has}


def open_sink() -> Trackio:
    return Trackio(re.sub(r"[^\w-]", "-", experiment_name()))
