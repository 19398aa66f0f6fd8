"""Read an engine's metrics.jsonl from where the last upload ended: {"step", "time", name: number, …} per line."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Point:
    name: str
    step: int
    time: float  # seconds since the epoch
    value: float


def points_after(path: Path, offset: int, batch: int) -> Iterator[tuple[list[Point], int]]:
    """The points of the complete lines from byte `offset` on, in batches of at most `batch`, each with its end offset.
    No file, or nothing new: no batches.

    A resumed engine may repeat the steps after its last checkpoint: only the last point per name and step is returned.
    A line that was truncated by a kill is skipped: its step is repeated by the resume, or was never completed.
    """
    lines = _whole_lines(path, offset)
    points = [_points(line) for line, _ in lines]
    last = {(point.name, point.step): number for number, some in enumerate(points) for point in some}
    collected: list[Point] = []
    reached = offset
    for number, (some, (_, end)) in enumerate(zip(points, lines, strict=True)):
        newest = [point for point in some if last[point.name, point.step] == number]
        if collected and len(collected) + len(newest) > batch:
            yield collected, reached
            collected = []
        while len(newest) > batch:  # one line with more names than fit into a batch
            yield newest[:batch], reached
            newest = newest[batch:]
        collected += newest
        reached = end
    if lines:
        yield collected, reached


def _whole_lines(path: Path, offset: int) -> list[tuple[bytes, int]]:
    """(line, byte offset of its end) from `offset` on; a last line without its newline is left for later."""
    try:
        with path.open("rb") as stream:
            if stream.seek(0, 2) < offset:
                offset = 0  # the job was restarted from scratch
            stream.seek(offset)
            # After a power cut, lost lines are zeros. A resumed run repeats what follows them; if it were uploaded now,
            # its steps would count as the newest, and the lost ones would be skipped
            content = stream.read().partition(b"\0")[0]
    except FileNotFoundError:
        return []
    lines = []
    for line in content.splitlines(keepends=True):
        offset += len(line)
        if line.endswith(b"\n"):
            lines.append((line, offset))
    return lines


def _points(line: bytes) -> list[Point]:
    try:
        values = json.loads(line)
        step, time = int(values.pop("step")), float(values.pop("time"))
        return [Point(name, step, time, float(value)) for name, value in values.items()]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
