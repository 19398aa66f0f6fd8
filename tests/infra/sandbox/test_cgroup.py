"""A cgroup limits the memory of an entire sandbox, on machines where cgroups can be created."""

import pytest

from baton.infra.sandbox.cgroup import Cgroup, delegated
from baton.infra.sandbox.program import Limits, Program
from baton.infra.sandbox.sandbox import Sandbox, unusable

PARENT = delegated()
if PARENT is None or unusable("bubblewrap"):
    pytest.skip("no cgroup (version 2) in which this user can limit memory", allow_module_level=True)

EAT = (
    "import os\nos.fork()\nblock = bytearray(%d << 20)\nblock[::4096] = b'x' * len(block[::4096])\nos.write(1, b'x')\n"
)


def test_one_process_may_use_what_another_leaves() -> None:
    alone = EAT.replace("os.fork()", "pass")
    assert (
        Sandbox(Limits(120.0, 100, memory_mb=200, processes=4), kind="bubblewrap").run(Program(alone % 150)).stdout
        == b"x"
    )


def test_together_they_may_not_use_more() -> None:
    eat = EAT.replace("os.write", "import time; time.sleep(2); os.write")
    result = Sandbox(Limits(120.0, 100, memory_mb=200, processes=4), kind="bubblewrap").run(Program(eat % 180))
    assert result.stdout != b"xx"


def test_a_cgroup_goes_with_its_sandbox() -> None:
    assert PARENT
    Sandbox(kind="bubblewrap").run(Program("print(1)"))
    assert not list(PARENT.glob("baton-sandbox-*"))
    assert not Cgroup(PARENT, Limits()).oom_killed()
    (left,) = PARENT.glob("baton-sandbox-*")
    left.rmdir()
