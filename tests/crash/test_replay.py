"""Power cuts at any point of five programs lose nothing that was acknowledged, and the programs continue from there.

The short form tests a few states of each program; `make test-crash` tests BATON_CRASH (130) of each.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.crash.record import strace_is_here

PROGRAMS = ("convert", "pretrain", "registry", "replace", "sft")
pytestmark = pytest.mark.skipif(
    not strace_is_here(), reason="strace is not here (Debian, Ubuntu: apt-get install strace)"
)


def replay(*words: str) -> dict[str, Any]:
    """Return the findings by program."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.crash.replay", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads("[" + done.stdout.strip().replace("}\n{", "},\n{") + "]")
    return {each["program"]: each for each in found}


@pytest.mark.long
def test_what_is_vouched_for_survives_a_power_cut() -> None:
    for name, found in replay("--states", "6", *PROGRAMS).items():
        assert found["states"] == 6, found
        assert not found["problems"], f"{name}: {found['problems']}"


@pytest.mark.long
def test_a_manifest_that_comes_before_its_files_is_found() -> None:
    """The replay detects errors: without the syncs before a manifest, as in an earlier version, it must find some."""
    assert replay("--states", "30", "--without-syncs", "pretrain")["pretrain"]["problems"]


@pytest.mark.crash
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("times", ["once", "twice"])
def test_no_power_cut_loses_anything(name: str, times: str) -> None:
    """`twice` records a run that continues after a power cut."""
    expected = os.environ.get("BATON_CRASH", "130")
    found = replay("--states", expected, *(["--twice"] if times == "twice" else []), name)[name]
    assert not found["problems"], "\n".join(found["problems"])
