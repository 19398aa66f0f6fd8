"""The sandboxes of the tests: every kind that this machine supports, as root and as an ordinary user."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from baton.infra.sandbox.bubblewrap import open_to_all
from tests.source import ROOT

USER = 12345
KINDS = ("bubblewrap", "sandlock")


def python_command(user: str, *argv: str) -> list[str]:
    """Return the command that runs this project's Python code as root or as an ordinary user. Skips the test if that is
    impossible."""
    python = _python()
    site = [path for path in sys.path if path.endswith("-packages")]
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), *site]), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["env", *(f"{name}={value}" for name, value in environment.items()), python, *argv]
    if user == "root" and os.getuid():
        pytest.skip("these tests do not run as root")
    if user == "user" and os.getuid() == 0:
        command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--", *command]
    return command


@cache
def _python() -> str:
    """Return a Python of this version that every user can run, since this one may be below root's home."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (Path(os.path.realpath(sys.executable)), Path(f"/usr/bin/python{version}")):
        if python.exists() and open_to_all(python):
            return str(python)
    pytest.skip(f"there is no Python {version} outside of root's home")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of sandbox that this machine supports."""
    needed = f"from baton.infra.sandbox.sandbox import unusable; print(end=unusable({request.param!r}))"
    asked = subprocess.run(python_command("user", "-c", needed), capture_output=True, text=True, cwd="/", check=False)
    if problem := asked.stdout or asked.stderr:
        pytest.skip(f"{request.param}: {problem}")
    return str(request.param)
