"""Weights & Biases: a run for each record, in the group of its execution, with the step as the axis of its charts.

Online, rows are sent while a stage runs. A run keeps its id, and W&B counts its rows, so that another process continues
after the last one that W&B has. A step that is trained again keeps its first value there.

With WANDB_MODE=offline, a run is written when it has ended, to BATON_HOME/wandb/offline-run-*-<id>, which replaces what
an interrupted delivery left; `wandb sync` uploads it.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import wandb

from baton.infra.paths import baton_home
from baton.infra.tracking.sinks.runs import Run
from baton.infra.tracking.spool import FINISHED
from baton.infra.tracking.store import experiment_name

OFFLINE = ("offline", "dryrun")
INIT_S = 30.0  # for W&B's answer, before the process ends and is started again later
LONGEST_TAG, LONGEST_PROJECT = 64, 128  # characters, W&B's limits
STEP = "step"


class Wandb:
    def __init__(self, folder: Path, is_offline: bool) -> None:
        self.folder, self.is_offline = folder, is_offline
        self._open: dict[str, tuple[Any, int]] = {}  # W&B's run, and the number of rows that it has

    def send(self, run: Run) -> None:
        if self.is_offline and not self._may_be_written(run):
            return
        if run.id not in self._open:
            self._open[run.id] = self._opened(run)
        opened, sent = self._open[run.id]
        for row in run.rows[sent:]:
            opened.log(row.values | {STEP: row.step, "_timestamp": row.time})
        self._open[run.id] = opened, max(sent, len(run.rows))
        opened.config.update({"params": run.params, "baton": run.tags}, allow_val_change=True)
        opened.summary.update(run.summary)
        if run.ended is not None:
            opened.finish(exit_code=0 if run.status == FINISHED else 1)
            del self._open[run.id]

    def close(self) -> None:
        for opened, _ in self._open.values():
            opened.finish()
        self._open.clear()
        wandb.teardown()  # waits for W&B's own process, which writes the files after the end of a run

    def _may_be_written(self, run: Run) -> bool:
        """Remove the earlier folders of a run that has ended, unless they have rows that are lost."""
        old = [*self.folder.glob(f"wandb/offline-run-*-{run.id}")]
        if run.ended is None or (old and run.has_lost_rows):
            return False
        for folder in old:
            shutil.rmtree(folder)
        return True

    def _opened(self, run: Run) -> tuple[Any, int]:
        opened = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or re.sub(r"[/\\#?%:]", "-", experiment_name())[:LONGEST_PROJECT],
            id=run.id,
            name=run.name,
            group=run.execution,
            job_type=run.stage or "execution",
            tags=[tag[:LONGEST_TAG] for tag in (run.tags.get("output"), run.tags.get("output.kind")) if tag],
            dir=self.folder,
            resume=None if self.is_offline else "allow",
            reinit="create_new",
            settings=wandb.Settings(
                mode="offline" if self.is_offline else "online",
                init_timeout=INIT_S,
                x_start_time=run.started,
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                save_code=False,
                # facts of the process that delivers, which is not the one that ran the stage
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
        )
        opened.define_metric(STEP)
        opened.define_metric("*", step_metric=STEP)
        return opened, opened.starting_step


def open_sink() -> Wandb:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.pop("WANDB_SERVICE", None)  # of W&B in the process that started this one
    folder = Path(os.environ.get("WANDB_DIR") or baton_home())
    return Wandb(folder, os.environ.get("WANDB_MODE", "").lower() in OFFLINE)
