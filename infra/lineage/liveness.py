"""Find out whether a run that MLflow lists as running still runs: on this machine, the spool knows at once."""

from pathlib import Path

from baton.infra.paths import home_path
from baton.infra.tracking.spool import RUNNING, RecordDamaged, is_alive, read_execution

LIVE = ("RUNNING", "SCHEDULED")


def local_status(execution: str) -> tuple[str, float | None] | None:
    """Status and end of an execution of this machine, even if MLflow has not received them; None for another machine's.

    An execution whose processes ended without a report is KILLED, at its last sign of life.
    """
    folder = home_path() / "executions" / execution
    lock = folder / "alive.lock"
    if Path(execution).name != execution:
        return None
    try:
        if not lock.is_file():
            return None
        if is_alive(folder):
            return RUNNING, None
        record = read_execution(folder)
        if record.flyte:  # other pods of the execution may still work
            return None
        return ("KILLED", lock.stat().st_mtime) if record.status == RUNNING else (record.status, record.ended)
    except (OSError, ValueError, RecordDamaged):  # not readable for this user: MLflow's status is shown
        return None
