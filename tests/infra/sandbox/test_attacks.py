"""Programs that try to escape from a sandbox, or to exhaust the machine, fail."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.sandbox.attacks import ATTACKS, PRELUDE
from tests.infra.sandbox.conftest import USER, python_command


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all users can reach, since pytest's own belongs to its user."""
    place = Path(tempfile.mkdtemp(prefix="baton-attacks-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.mark.long
@pytest.mark.parametrize("user", ["root", "user"])
def test_no_attack_succeeds_and_the_host_stays_as_it_was(user: str, kind: str, folder: Path) -> None:
    command = python_command(user, "-m", "tests.infra.sandbox.trial", kind, str(folder))
    if os.getuid() == 0 and user == "user":
        os.chown(folder, USER, USER)

    tried = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=900, check=False)

    assert tried.returncode == 0, tried.stderr[-3000:]
    assert json.loads(tried.stdout) == {"attacks": len(ATTACKS), "succeeded": {}}


@pytest.mark.parametrize(
    "attack",
    ["read a secret", "secrets of the environment", "overwrite a file of the host", "kill a process of the host"],
)
def test_an_attack_that_nothing_stops_is_seen(attack: str, folder: Path) -> None:
    (folder / "canary").write_text("a secret")
    with subprocess.Popen(["sleep", "60"]) as victim:
        lure = {"canary": str(folder / "canary"), "secret": "a secret", "victim": victim.pid}
        program = [sys.executable, "-c", PRELUDE + ATTACKS[attack]]
        seen = os.environ | {"KEY": "a secret"}
        ended = subprocess.run(program, input=json.dumps(lure).encode(), env=seen, capture_output=True, check=False)
        victim.kill()
    assert b"SUCCEEDED" in ended.stdout
