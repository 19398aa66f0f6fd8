"""Ranks as separate processes, forked from one that has loaded the libraries (tests/forked.py).

They find each other as torchrun's workers do, and each writes its output to a file.
"""

import json
import multiprocessing.connection
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from baton.tasks.core.job import main
from tests import forked

forked.load("baton.tasks.pretrain.train", "baton.tasks.pretrain.trainer")
TIMEOUT_S = 300.0
GRACE_S = 20.0  # the time for the other ranks to end after a failure


class Ranks:
    """`world` processes that call `function(*arguments)`."""

    def __init__(self, world: int, logs: Path, function: Callable[..., None], *arguments: Any) -> None:
        self.logs = logs
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.processes = [
            forked.SERVER.Process(target=_rank, args=(rank, world, port, logs, function, arguments), daemon=True)
            for rank in range(world)
        ]
        for process in self.processes:
            process.start()

    def end(self, timeout_s: float = TIMEOUT_S) -> list[int | None]:
        """Wait for all ranks, and return their exit codes. If one fails, the others are killed, as with torchrun."""
        deadline = time.monotonic() + timeout_s
        while running := [process for process in self.processes if process.is_alive()]:
            multiprocessing.connection.wait([process.sentinel for process in running], timeout=1)
            if any(process.exitcode for process in self.processes):
                deadline = min(deadline, time.monotonic() + GRACE_S)
            if time.monotonic() > deadline:
                self.kill()
        return [process.exitcode for process in self.processes]

    def succeed(self, timeout_s: float = TIMEOUT_S) -> None:
        codes = self.end(timeout_s)
        assert not any(codes), f"exit codes {codes}\n{self.log()}"

    def alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def kill(self) -> None:
        """Kill each rank with kill -9."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def log(self) -> str:
        return "".join(path.read_text()[-3000:] for path in sorted(self.logs.glob("rank-*.txt")))


def _rank(
    rank: int, world: int, port: int, logs: Path, function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    with (logs / f"rank-{rank}.txt").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    function(*arguments)


def load_libraries(logs: Path) -> None:
    """Load the libraries before time is measured, since the first ranks of all wait for them."""
    Ranks(1, logs, _nothing).succeed()


def _nothing() -> None:
    pass


def engine(job: Path) -> Ranks:
    """Run the pretraining engine on a job in the layout of its spec."""
    layout = json.loads((job / "spec.json").read_text())["spec"]["layout"]
    return Ranks(layout["processes"], job, _train, job)


def _train(job: Path) -> None:
    from baton.tasks.pretrain.train import work

    sys.argv = ["baton.tasks.pretrain.train", str(job)]
    main(work)


def parity(world: int, folder: Path, data: Path) -> Ranks:
    """Train the layouts of `folder` (parity.py)."""
    return Ranks(world, folder, _parity, folder, data)


def _parity(folder: Path, data: Path) -> None:
    from tests.pretrain.parity import main

    main(folder, data)
