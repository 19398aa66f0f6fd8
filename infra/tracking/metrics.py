"""Read an engine's metrics.jsonl from where the last upload ended: {"step", "time", name: number, …} per line."""

import json
from dataclasses import dataclass
from pathlib import Path

from baton.infra.tracking.spool import FINISHED

FILE_CLOCK_S = 0.1  # a killed run's end is its files' mtime, whose clock is coarser


@dataclass(frozen=True)
class Point:
    name: str
    step: int
    time: float  # seconds since the epoch
    value: float


def points_after(path: Path, offset: int) -> tuple[list[Point], int]:
    """The points of the complete lines from byte `offset` on, and the byte at which these end.

    A resumed engine may repeat the steps after its last checkpoint: only the last point per name and step is returned.
    A line that was truncated by a kill is skipped: its step is repeated by the resume, or was never completed.
    """
    lines, end = _complete_lines(path, offset)
    return [*{(point.name, point.step): point for line in lines for point in _points(line)}.values()], end


def belongs(time: float, status: str, ended: float | None) -> bool:
    """Return whether a point of this time is of a run with this status and end, and not of another execution that
    resumed the job after it."""
    return ended is None or status == FINISHED or time <= ended + FILE_CLOCK_S


def _complete_lines(path: Path, offset: int) -> tuple[list[bytes], int]:
    """The lines from byte `offset` on, and the end of the last one; a line without its newline is left for later."""
    try:
        with path.open("rb") as stream:
            if stream.seek(0, 2) < offset:
                offset = 0  # the job was restarted from scratch
            stream.seek(offset)
            # After a power cut, lost lines are zeros. A resumed run repeats the lines after them; if those were sent
            # now, their steps would count as the newest, and the lost ones would be skipped
            content = stream.read().partition(b"\0")[0]
    except FileNotFoundError:
        return [], offset
    complete = content[: content.rfind(b"\n") + 1]
    return complete.splitlines(), offset + len(complete)


def _points(line: bytes) -> list[Point]:
    try:
        values = json.loads(line)
        step, time = int(values.pop("step")), float(values.pop("time"))
        return [Point(name, step, time, float(value)) for name, value in values.items()]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
