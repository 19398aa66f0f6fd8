"""Commands in messages work as printed, in the clone and elsewhere, with and without an active environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from baton.infra.commands import command
from tests.source import ROOT

BIN = Path(sys.executable).parent
DESCRIBE = "baton describe convert"


def run(line: str) -> str:
    """Run a command in a user's shell in the current folder, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(line, shell=True, check=True, capture_output=True, text=True, env=environment).stdout


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def inactive(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder).resolve() != BIN.resolve()]
    monkeypatch.setenv("PATH", os.pathsep.join(others))


@pytest.mark.usefixtures("active")
def test_in_an_active_environment_a_command_is_as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert command(DESCRIBE) == DESCRIBE


@pytest.mark.usefixtures("inactive")
def test_without_it_the_program_has_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert command(DESCRIBE).endswith("bin/baton describe convert")
    assert "convert:" in run(command(DESCRIBE))


@pytest.mark.parametrize("environment", ["active", "inactive"])
def test_from_another_folder_it_runs_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, environment: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(environment)
    monkeypatch.chdir(tmp_path)
    assert "convert:" in run(command(DESCRIBE))


def test_from_another_folder_a_file_of_the_clone_has_its_full_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = command("pyflyte run workflows/pretrain_to_rl.py pretrain_to_rl --recipe mine.yaml")
    assert printed.endswith(f"run {ROOT}/workflows/pretrain_to_rl.py pretrain_to_rl --recipe mine.yaml")
