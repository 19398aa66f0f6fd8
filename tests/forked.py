"""Processes forked from one that has loaded the libraries. torch, Megatron and TRL take seconds to import; with a fork,
an engine that is killed can be restarted within a moment. Tests of complete workflows (tests/workflows) start engines
by `python -m`, as a stage does."""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SERVER = multiprocessing.get_context("forkserver")
_LIBRARIES = ["pytest"]


def load(*modules: str) -> None:
    """Load these modules in the process that is forked. Has no effect once this process runs: each fork loads them
    then."""
    _LIBRARIES.extend(modules)
    SERVER.set_forkserver_preload(_LIBRARIES)


class Forked:
    """A process that calls `function(*arguments)` in this process's environment; its output is appended to `log`. Tests
    wait for it and stop it as with a subprocess.Popen."""

    def __init__(self, log: Path, function: Callable[..., None], *arguments: Any) -> None:
        self._process = SERVER.Process(target=_call, args=(log, dict(os.environ), function, arguments))
        self._process.start()
        self.pid = self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        return code

    def send_signal(self, signum: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self._process.kill()


def module(name: str, job: Path) -> Forked:
    """Run `python -m name JOB_DIR`, with its output in the job's log.txt."""
    return Forked(job / "log.txt", _module, name, job)


def program(log: Path, name: str, *words: str) -> Forked:
    """Run `python -m name WORDS`, including the functions registered with atexit."""
    return Forked(log, _program, name, words)


def _call(log: Path, environment: dict[str, str], function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    function(*arguments)


def _module(name: str, job: Path) -> None:
    sys.argv = [name, str(job)]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _program(name: str, words: tuple[str, ...]) -> None:
    sys.argv = [name, *words]
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing does not run them in a child
