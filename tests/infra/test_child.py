"""A separate process that answers one request."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.infra.process.child import ChildFailed, ChildTooSlow, ask
from tests.source import ROOT

HEAD = "import json, os, subprocess, sys, time\nfrom pathlib import Path\nfrom baton.infra.process.child import reply\n"
Module = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """Write a module with this body of `work(request, folder)`; returns its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def written(body: str) -> str:
        (tmp_path / "asked.py").write_text(f"{HEAD}def work(request, folder):\n    {body}\nreply(work)\n")
        return "asked"

    return written


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def gone(pid: int) -> bool:
    """Return whether a process ends soon."""
    deadline = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


def test_it_answers_whatever_it_prints(module: Module) -> None:
    body = "print('hello'); return {'request': json.loads(request), 'files': os.listdir(folder)}"
    assert ask(module(body), '"ß\\n"', 60) == {"request": "ß\n", "files": []}


@pytest.mark.parametrize("leave", ["sys.exit(0)", "os._exit(0)"])
def test_one_that_leaves_with_0_has_not_answered(module: Module, leave: str) -> None:
    with pytest.raises(ChildFailed, match=r"exited with code 0 and without an answer: bye"):
        ask(module(f"print('bye', flush=True); {leave}"), "", 60)


def test_it_reads_nothing(module: Module) -> None:
    assert ask(module("return sys.stdin.read()"), "", 60) == ""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('no such thing')", "exited with code 1: .*ValueError: no such thing"),
        ("os._exit(7)", "exited with code 7"),
        ("os.kill(os.getpid(), 9)", "exited with code -9"),
        ("return {1, 2}", "set is not JSON serializable"),
    ],
)
def test_how_it_ended_without_an_answer_is_said(module: Module, body: str, said: str) -> None:
    with pytest.raises(ChildFailed, match=f"(?s){said}"):
        ask(module(body), "", 60)


def test_at_the_limit_it_ends_with_what_it_has_started(module: Module, tmp_path: Path) -> None:
    body = f"Path('{tmp_path}/pid').write_text(str(subprocess.Popen(['sleep', '600']).pid)); time.sleep(600)"
    with pytest.raises(ChildTooSlow, match="longer than 3 s"):
        ask(module(body), "", 3)
    assert gone(int((tmp_path / "pid").read_text()))


def test_it_ends_with_its_parent(module: Module, tmp_path: Path) -> None:
    name = module(f"Path('{tmp_path}/pid').write_text(str(os.getpid())); time.sleep(600)")
    program = f"from baton.infra.process.child import ask; ask('{name}', '', 600)"
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    pid = tmp_path / "pid"
    deadline = time.monotonic() + 30
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert gone(int(pid.read_text()))
