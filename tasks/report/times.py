"""Start time, code version and stage durations of an execution, from the tracking spool."""

import time

from infra.text import duration
from infra.tracking.spool import Execution, execution_folder, read_execution, read_stage, stage_folders
from tasks.pages.blocks import Block, Cell, Mark, Table, Text


def about_execution(execution_id: str) -> list[str]:
    """The parts of the report's subtitle."""
    execution = _find(execution_id)
    if execution is None:
        return []
    code = execution.code
    changed = " with changes" if code.get("dirty") == "true" else ""
    return [
        time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(execution.started)),
        f"execution {execution_id}",
        f"commit {code.get('commit', 'unknown')[:10]}{changed}",
    ]


def times(execution_id: str) -> list[Block]:
    """A row per finished stage, by start time; empty without an execution."""
    if not execution_id:
        return []
    execution = _find(execution_id)
    if execution is None:
        return [Text(f"The times of execution {execution_id} are not on this machine.", "quiet")]
    runs = sorted(map(read_stage, stage_folders(execution_folder(execution_id))), key=lambda run: run.started)
    ended = [(run, run.ended) for run in runs if run.ended is not None]
    rows: list[list[Cell]] = [
        [
            run.title,
            duration(end - run.started),
            Mark("from the cache" if run.cached else run.status.lower(), "quiet"),
        ]
        for run, end in ended
    ]
    if ended:
        whole = duration(max(end for _, end in ended) - execution.started)
        rows.append([Mark("total so far", "best"), Mark(whole, "best"), ""])
    return [Table("Stages of this execution", ["stage", "time", "status"], rows, "lrl")]


def _find(execution_id: str) -> Execution | None:
    folder = execution_folder(execution_id)
    return read_execution(folder) if execution_id and (folder / "execution.json").exists() else None
