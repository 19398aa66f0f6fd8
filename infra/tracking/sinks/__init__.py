"""Deliver the records of executions to other trackers than MLflow, which a recipe names in `tracking: {also: […]}`.

They get the same records from the same spool, each by a process of its own: a client library that fails, hangs or
crashes affects neither the run nor MLflow, and is imported in no other process. Undelivered records stay in the spool
until the next run that names the tracker, or `baton tracking sync`.

    runs.py             the records of an execution as runs with rows of metrics
    deliver.py          brings a tracker up to date with the spool, in `python -m baton.infra.tracking.sinks NAME`
    process.py          starts that process, and starts it again after an outage
    wandb.py, …         a tracker each
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

from baton.infra.tracking.sinks.runs import Run


class Sink(Protocol):
    """A tracker to which runs are sent."""

    def send(self, run: Run) -> None:
        """Bring the tracker up to date with a run. Idempotent: a row that the tracker has is not added again."""

    def close(self) -> None:
        """Wait until the tracker has everything that was sent."""


@dataclass(frozen=True)
class Tracker:
    """A tracker that a recipe can name: its client library, and the place of its runs."""

    package: str  # as imported and as installed
    version: str  # the versions that Baton was tested with
    look: str  # the command that shows the runs

    def is_installed(self) -> bool:
        return find_spec(self.package) is not None

    def open(self) -> Sink:
        """Return the sink that delivers to this tracker. Imports its client library."""
        sink: Callable[[], Sink] = import_module(f"{__name__}.{self.package}").open_sink
        return sink()


TRACKERS = {
    "wandb": Tracker("wandb", ">=0.26,<0.27", "https://wandb.ai, or `wandb sync` after a run with WANDB_MODE=offline"),
    "trackio": Tracker("trackio", ">=0.43,<0.44", "`trackio show`"),
    "tensorboard": Tracker("tensorboard", ">=2.21,<2.22", "`tensorboard --logdir .baton/tensorboard`"),
}
