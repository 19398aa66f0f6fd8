"""A long series of programs, one in ten of them hostile: each gets a result, nothing is left, and memory use stays
flat.

BATON_SNIPPETS=10000 is the full run, which takes five to fifteen minutes on two cores.
"""

import ctypes
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from baton.infra.sandbox.bubblewrap import NOBODY
from baton.infra.sandbox.pool import Pool
from baton.infra.sandbox.program import Limits, Program
from baton.infra.sandbox.sandbox import Sandbox, unusable
from tests.infra.sandbox.attacks import ATTACKS, PRELUDE
from tests.infra.sandbox.trial import orphans
from tests.source import ROOT

if problem := unusable("bubblewrap"):
    pytest.skip(f"bubblewrap: {problem}", allow_module_level=True)

COUNT = int(os.environ.get("BATON_SNIPPETS", "400"))
KILLS = int(os.environ.get("BATON_KILLS", "10"))
LIMITS = Limits(wall_s=1.0, cpu_s=1, memory_mb=256, processes=4, disk_mb=4, files=100)
HONEST = Limits(wall_s=300.0, memory_mb=256)  # even on a busy machine
HOSTILE = (
    "fork bomb", "thread bomb", "a daemon", "stopped", "signals ignored", "kill everything", "memory",
    "memory of children together", "pipes", "recursion", "disk", "inodes", "deleted files that stay open", "output",
    "errors", "output from a child",
)  # fmt: skip


def honest(number: int) -> Program:
    return Program("print(sum(map(int, input().split())))", stdin=f"{number} 1".encode())


def hostile(number: int) -> Program:
    lure = f'{{"processes": {LIMITS.processes}, "memory": {LIMITS.memory_mb << 20}}}'
    return Program(PRELUDE + ATTACKS[HOSTILE[number % len(HOSTILE)]], stdin=lure.encode())


def left() -> dict[str, object]:
    """Return everything that programs might leave on this machine."""
    gc.collect()  # close the descriptors of other tests
    return {
        "processes": orphans(NOBODY),
        "children": psutil.Process().children(recursive=True),
        "descriptors": len([*Path("/proc/self/fd").iterdir()]),
        "threads": psutil.Process().num_threads(),
        "mounts": Path("/proc/self/mountinfo").read_text(),
    }


@pytest.mark.long
def test_all_are_answered_and_nothing_is_left() -> None:
    before = left()
    sizes = []
    with Pool(Sandbox(HONEST, kind="bubblewrap"), 2) as good, Pool(Sandbox(LIMITS, kind="bubblewrap"), 2) as bad:
        for begin in range(0, COUNT // 10, 10):
            numbers = range(begin * 9, (begin + 10) * 9)
            for number, result in zip(numbers, good.map(map(honest, numbers)), strict=True):
                assert (result.stdout, result.exit_code, result.limit) == (b"%d\n" % (number + 1), 0, None), number
            for number, result in enumerate(bad.map(map(hostile, range(begin, begin + 10))), begin):
                assert b"SUCCEEDED" not in result.stdout, HOSTILE[number % len(HOSTILE)]
            sizes.append(psutil.Process().memory_info().rss / 1e6)
            print(f"{10 * (begin + 10)} programs, {sizes[-1]:.1f} MB", flush=True)
    assert left() == before
    assert max(sizes) - sizes[0] < 5, sizes


@contextmanager
def adopting() -> Iterator[None]:
    """Adopt orphans: those of this process's descendants become its children, and not init's."""
    prctl, set_child_subreaper = ctypes.CDLL(None).prctl, 36
    prctl(set_child_subreaper, 1)
    try:
        yield
    finally:
        prctl(set_child_subreaper, 0)


@pytest.mark.long
def test_a_killed_pool_leaves_nothing() -> None:
    """kill -9 at moments from before the start of the first sandbox to after the end of the first programs."""
    endless = (
        "from baton.infra.sandbox.pool import Pool; from baton.infra.sandbox.program import Program\n"
        "from baton.infra.sandbox.sandbox import Sandbox\n"
        "with Pool(Sandbox(kind='bubblewrap'), 4) as pool:\n"
        "    print(flush=True)\n"
        "    while True: pool.map([Program('pass')] * 8)"
    )
    before = psutil.Process().children(recursive=True)
    with adopting():
        for kill in range(KILLS):
            with subprocess.Popen([sys.executable, "-c", endless], cwd=ROOT, stdout=subprocess.PIPE) as process:
                assert process.stdout
                process.stdout.readline()  # printed after the self-test
                time.sleep(0.3 * kill / KILLS)
                process.kill()
            left = [each for each in psutil.Process().children(recursive=True) if each not in before]
            psutil.wait_procs(left, timeout=20)  # reaps them
            assert psutil.Process().children(recursive=True) == before, f"kill {kill}"
