"""An error in SkyPilot leaves this process's tracebacks unchanged."""

import subprocess
import sys

import pytest

REFUSED = """
import sys, traceback
{first}
import sky
try:
    sky.Resources(cpus="many")
except ValueError as error:
    print(len(traceback.extract_tb(error.__traceback__)) > 0)
"""


@pytest.mark.parametrize("module", ["api_server", "prices"])
def test_an_error_of_skypilot_leaves_tracebacks(module: str) -> None:
    assert printed(f"import baton.infra.placement.{module}") == "True"


def test_skypilot_still_turns_tracebacks_off() -> None:
    """This fails when a release of SkyPilot no longer turns tracebacks off; then delete the change in
    infra/placement/skypilot.py."""
    assert printed("") == "False"


def printed(first: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", REFUSED.format(first=first)], check=True, capture_output=True, text=True
    ).stdout.strip()
