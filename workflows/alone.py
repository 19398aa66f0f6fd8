"""One run at a time for one model on one machine. On a Flyte cluster its launch plans' concurrency policy does this.

And where both are passed by, two runs end in one promotion all the same: the champion moves only from the version
that the candidate was compared with (tasks/promote).
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from infra.home import baton_home
from infra.progress import say


@contextmanager
def alone(name: str, on_overlap: Literal["wait", "skip"]) -> Iterator[bool]:
    """Hold the model's lock; False: another run has it and is not waited for. Whoever dies lets go of it."""
    folder = baton_home() / "continuous"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_overlap == "skip":
                yield False
                return
            say(f"{name}: another run is at work on this model; waiting for it to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield True
