"""An engine's metrics.jsonl, read from where the last push ended: {"step", "time", name: number, …} a line."""

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
    """The points of the whole lines from byte `offset` on, in batches of at most `batch`, each with the
    offset that it reaches. No file, or nothing new: no batches.

    A resumed engine may repeat the steps after its last checkpoint: of what is read here, only the last
    point of a name and a step counts. A line that was cut short by a kill is passed over: its step is
    repeated by the resume, or was never reached.
    """
    lines = _whole_lines(path, offset)
    points = [_points(line) for line, _ in lines]
    last = {(point.name, point.step): number for number, some in enumerate(points) for point in some}
    collected: list[Point] = []
    reached = offset
    for number, (some, (_, end)) in enumerate(zip(points, lines, strict=True)):
        kept = [point for point in some if last[point.name, point.step] == number]
        if collected and len(collected) + len(kept) > batch:
            yield collected, reached
            collected = []
        while len(kept) > batch:  # one line with more names than a batch takes
            yield kept[:batch], reached
            kept = kept[batch:]
        collected += kept
        reached = end
    if lines:
        yield collected, reached


def _whole_lines(path: Path, offset: int) -> list[tuple[bytes, int]]:
    """(line, byte offset of its end) from `offset` on; a last line without its newline is left for later."""
    try:
        with path.open("rb") as stream:
            if stream.seek(0, 2) < offset:
                offset = 0  # the job was begun anew
            stream.seek(offset)
            # a power cut leaves zeros where a line was lost. What is behind them is taken again by a resumed run; sent
            # now, its steps would pass for the newest, and the lost ones be left out
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
