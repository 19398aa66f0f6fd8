"""TensorBoard: event files in BATON_HOME/tensorboard/<execution>/<stage>, written by TensorBoard's own package, without
TensorFlow or torch.

A run's rows are appended to one file. When its earlier rows have changed, when it ends, and in a new process, the file
is written again and replaces the old one, so that a kill leaves no row twice.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from baton.infra.paths import baton_home
from baton.infra.tracking.sinks.runs import Row, Run

LARGEST_INT = 2**53  # a hyperparameter is a double


@dataclass
class _File:
    writer: EventFileWriter
    revision: int
    rows: int = 0  # written


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, _File] = {}

    def send(self, run: Run) -> None:
        file = self._open.get(run.id)
        if file is None or file.revision != run.revision or run.ended is not None:
            file = self._written_again(run)
        if file is None:
            return
        self._append(file, run.rows)
        file.writer.flush()
        if run.ended is not None:
            self._open.pop(run.id).writer.close()

    def close(self) -> None:
        for file in self._open.values():
            file.writer.close()
        self._open.clear()

    def _written_again(self, run: Run) -> _File | None:
        """A new file with the run's record, in place of those that are there; None if they have rows that are lost."""
        folder = self.folder / run.execution / run.stage
        old = [*folder.glob("events.out.tfevents.*")]
        if old and run.has_lost_rows:
            return None
        if run.id in self._open:
            self._open.pop(run.id).writer.close()
        file = self._open[run.id] = _File(EventFileWriter(str(folder)), run.revision)
        # a TensorBoard that has read the old file discards what it has from step 0 on
        file.writer.add_event(Event(wall_time=run.started, session_log=SessionLog(status=SessionLog.START)))
        for summary in (hparams_pb(_hyperparameters(run), run.id, run.started), text_pb("record", _text(run))):
            file.writer.add_event(Event(wall_time=run.started, summary=summary))
        if run.ended is not None:
            self._append(file, [*run.rows, Row(run.last_step, run.ended, run.summary)])
        file.writer.flush()
        for path in old:
            path.unlink(missing_ok=True)
        return file

    def _append(self, file: _File, rows: Sequence[Row]) -> None:
        for row in rows[file.rows :]:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            file.writer.add_event(Event(wall_time=row.time, step=row.step, summary=Summary(value=values)))
        file.rows = len(rows)


def _hyperparameters(run: Run) -> dict[str, bool | float | str]:
    """The parameters as the types that TensorBoard has."""
    return {
        name: value
        if isinstance(value, bool | float | str) or (isinstance(value, int) and abs(value) < LARGEST_INT)
        else json.dumps(value)
        for name, value in run.params.items()
    }


def _text(run: Run) -> str:
    """The record as Markdown: an indented block, in which no text is markup."""
    record = {"name": run.name, "status": run.status, "tags": run.tags}
    return "\n".join(f"    {line}" for line in json.dumps(record, indent=1).splitlines())


def open_sink() -> TensorBoard:
    return TensorBoard(baton_home() / "tensorboard")
