"""A long run of programs, one in ten hostile: each is answered, nothing is left, and the memory stays flat.

BATON_SNIPPETS=10000 is the full run: five to fifteen minutes on two cores.
"""

import os
from pathlib import Path

import psutil
import pytest

from infra.sandbox.bubblewrap import NOBODY
from infra.sandbox.pool import Pool
from infra.sandbox.program import Limits, Program
from infra.sandbox.sandbox import Sandbox, unusable
from tests.infra.sandbox.attacks import ATTACKS, PRELUDE
from tests.infra.sandbox.trial import orphans

if problem := unusable("bubblewrap"):
    pytest.skip(f"bubblewrap: {problem}", allow_module_level=True)

COUNT = int(os.environ.get("BATON_SNIPPETS", "400"))
LIMITS = Limits(wall_s=1.0, cpu_s=1, memory_mb=256, processes=4, disk_mb=4, files=100)
HONEST = Limits(wall_s=300.0, memory_mb=256)  # however busy the machine is
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
    """What programs could leave on this machine."""
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
