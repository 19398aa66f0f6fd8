"""Show progress and notices on stderr: a bar on a terminal, a line now and then elsewhere."""

import json
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

NOTICES = "notices.jsonl"  # in a job's folder
QUIET_INTERVAL_S = 15.0  # time between lines if stderr is a file or a CI log


def say(message: str) -> None:
    """Print a line for the user, to stderr."""
    print(message, file=sys.stderr, flush=True)


@cache
def say_once(message: str) -> None:
    """`say`, once in a process: the checks of a recipe run before the run, and again where its execution begins."""
    say(message)


def say_end(title: str, succeeded: bool, summary: str) -> None:
    """The last line about a stage."""
    say(f"{'✓' if succeeded else '✗'} {title:<10} {summary}")


class ProgressBar:
    """Shows an engine's progress.json and notices (see tasks/core/job.py)."""

    def __init__(self, title: str, job_dir: Path) -> None:
        self.title, self.path, self.notices = title, job_dir / "progress.json", job_dir / NOTICES
        self.noticed = 0  # bytes of the notices that have been shown
        self.started = self.printed = time.monotonic()
        self.first: tuple[float, float] | None = None  # when progress was seen first, and how much was done
        self.bar = _bar()
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task(title, total=None, shown="starting")

    def update(self) -> None:
        """Read progress.json and new notices, and show them. Cheap; called several times a second."""
        self._show_notices()
        try:
            state = json.loads(self.path.read_text())
        except FileNotFoundError:
            return  # the engine is still importing libraries
        now, done, total = time.monotonic(), state["done"], state["total"]
        if self.first is None or done < self.first[1]:  # what a killed engine left is not this one's
            self.first = now, done
        shown = "  ".join([f"{state['done']:,.0f}/{state['total']:,.0f} {state['unit']}", *_facts(state["shown"])])
        if self.bar is not None:
            self.bar.update(self.task, completed=state["done"], total=state["total"], shown=shown)
        elif now - self.printed > QUIET_INTERVAL_S:
            self.printed = now
            began, before = self.first
            left = f"  {(total - done) * (now - began) / (done - before):,.0f} s left" if done > before else ""
            say(f"{self.title:<10} {now - self.started:5.0f} s  {shown}{left}")

    def close(self, succeeded: bool, summary: str = "") -> None:
        """Replace the bar with one final line, which has `summary` or the time that passed."""
        self._show_notices()
        if self.bar is not None:
            self.bar.update(self.task, visible=False)
            self.bar.stop()
        say_end(self.title, succeeded, summary or f"{time.monotonic() - self.started:.1f} s".rjust(8))

    def _show_notices(self) -> None:
        try:
            with self.notices.open("rb") as stream:
                stream.seek(self.noticed)
                new = stream.read()
        except FileNotFoundError:
            return
        complete = new[: new.rfind(b"\n") + 1]
        self.noticed += len(complete)
        for line in complete.splitlines():
            say(f"! {self.title}: {json.loads(line)['text']}")


def _bar() -> "Progress | None":
    """A bar, on a terminal."""
    from rich.console import Console  # engines and their workers, which only `say`, start without it
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    return Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=28),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[shown]}"),
        console=console,
    )


def _facts(shown: dict[str, str | float]) -> list[str]:
    return [f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown.items()]
