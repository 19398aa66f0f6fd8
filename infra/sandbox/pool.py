"""Runs many programs concurrently, each in a fresh sandbox that was started ahead of it."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from types import TracebackType
from typing import Self

from baton.infra.sandbox.program import Program, Result
from baton.infra.sandbox.sandbox import Sandbox
from baton.infra.sandbox.worker import Worker


class Pool:
    """`workers` slots. While a slot's program runs, the sandbox of its next program starts. Each sandbox is used once,
    so that no program sees what another one left."""

    def __init__(self, sandbox: Sandbox, workers: int) -> None:
        self._sandbox = sandbox
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="sandbox")
        self._next: dict[int, Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def map(self, programs: Iterable[Program]) -> list[Result]:
        """Return each program's result, in order. Raises NoSandbox."""
        return list(self._executor.map(self._run, programs))

    def close(self) -> None:
        """Wait for the running programs, and stop the waiting sandboxes."""
        self._close_waiting()  # before their threads end: the kernel then kills bubblewrap, and init gets its child
        self._executor.shutdown(cancel_futures=True)
        self._close_waiting()  # those started by programs that still ran

    def _close_waiting(self) -> None:
        while self._next:
            self._next.popitem()[1].close()

    def _run(self, program: Program) -> Result:
        slot = get_ident()
        worker = self._next.pop(slot, None) or self._sandbox.start()
        with worker:
            self._next[slot] = self._sandbox.start()
            return worker.run(program)
