"""Describe a failed job in few lines: its cause, the last useful lines of its log, and a way out."""

import re

LINES = 6  # ten with the frame and the two lines that a terminal adds
WIDTH = 76  # width of a line in that frame
TITLE = 20  # characters that a caller puts before the first line

_ENDED = re.compile(r"^✓ Job finished \(status: \w+\)\.$")  # SkyPilot's last line, of a failed job too
_JOB_PREFIX = re.compile(r"^\([^()]*pid=\d+[^()]*\) ?")  # SkyPilot's prefix of a job's own output


def failure(head: str, cause: str, log: str, way_out: str) -> str:
    """`head` says what failed and where. Of the cause the first lines are kept, of the log the last ones."""
    room = LINES - _rows(f"{head}{' ' * TITLE}") - _rows(way_out)
    lines = _useful(log)
    first = _first(cause.splitlines(), max(room - 3, 1) if lines else room)
    last = [cut(line, WIDTH) for line in lines][-max(room - sum(map(_rows, first)), 1) :] if lines else []
    return "\n".join([head, *first, *last, way_out])


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _rows(line: str) -> int:
    """The number of rows of a line when it is wrapped."""
    return max(1, -(-len(line) // WIDTH))


def _first(lines: list[str], rows: int) -> list[str]:
    """The first lines, as many as fit; the last of them is cut."""
    kept: list[str] = []
    for line in dict.fromkeys(each.rstrip() for each in lines if each.strip()):
        if rows <= 0:
            break
        kept.append(cut(line, rows * WIDTH))
        rows -= _rows(kept[-1])
    return kept


def _useful(log: str) -> list[str]:
    """The lines of the job's own output without SkyPilot's prefix; if the job wrote nothing, SkyPilot's lines."""
    lines = [line for line in log.splitlines() if line.strip() and not _ENDED.match(line)]
    own = [_JOB_PREFIX.sub("", line) for line in lines if _JOB_PREFIX.match(line)]
    return [line for line in own if line.strip()] or lines
