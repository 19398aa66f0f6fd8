"""Kill the promotion engine at its first change of the registry, at its second, and so on until it ends.

python -m tests.promote.killed JOB_DIR prints the number of kills.
"""

import os
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from baton.tasks.core.job import main, open_job
from baton.tasks.core.manifest import MANIFEST
from baton.tasks.promote.promote import work
from baton.tasks.publish import champion

CHANGES = (
    "set_registered_model_alias", "set_registered_model_tag", "delete_registered_model_tag", "set_model_version_tag",
)  # fmt: skip


def counted(change: Callable[..., Any], left: Iterator[int]) -> Callable[..., Any]:
    def change_or_die(*arguments: Any) -> Any:
        if not next(left):
            os.kill(os.getpid(), signal.SIGKILL)
        return change(*arguments)

    return change_or_die


def run_engine(calls: int) -> None:
    """Run the engine, and end this process."""
    left = iter(range(calls, -1, -1))
    champion.CLAIM_S = 0.2  # lets the claims of killed processes expire quickly
    for name in CHANGES:
        setattr(MlflowClient, name, counted(getattr(MlflowClient, name), left))
    main(work)
    os._exit(0)


def until_it_ends(job: Path) -> int:
    for calls in count():
        child = os.fork()  # the child inherits the imports
        if not child:
            run_engine(calls)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert status == 0 and (job / "output" / MANIFEST).exists()
            return calls
    raise AssertionError


if __name__ == "__main__":
    import sys

    print(until_it_ends(open_job(Path(sys.argv[1])).directory))
