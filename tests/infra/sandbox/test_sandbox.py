"""A sandbox runs a program within limits, and reports how it ended."""

import gc
import os
import resource
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from baton.infra.sandbox import sandbox as chooser
from baton.infra.sandbox.pool import Pool
from baton.infra.sandbox.program import Limits, NoSandbox, Program, Result
from baton.infra.sandbox.sandbox import Sandbox, unusable
from baton.infra.sandbox.self_test import faults
from baton.infra.sandbox.worker import Worker

if problem := unusable("bubblewrap"):
    pytest.skip(f"bubblewrap: {problem}", allow_module_level=True)


def run(source: str, **limits: Any) -> Result:
    return Sandbox(Limits(**({"wall_s": 60.0} | limits)), kind="bubblewrap").run(Program(source))


# Input and output of a program


def test_a_program_reads_its_input_and_its_files() -> None:
    program = Program("print(input(), open('a/b.txt').read())", stdin=b"1\n", files={"a/b.txt": b"2"})
    result = Sandbox(kind="bubblewrap").run(program)
    assert (result.stdout, result.exit_code, result.limit) == (b"1 2\n", 0, None)


def test_it_runs_as_a_script() -> None:
    result = run("import sys\nif __name__ == '__main__': print(sys.argv)\nexit(3)")
    assert (result.stdout, result.exit_code) == (b"['main.py']\n", 3)


def test_its_errors_come_back() -> None:
    result = run("def f():\n    return 1 / 0\nf()")
    assert result.exit_code == 1
    assert b'"main.py", line 2, in f\nZeroDivisionError' in result.stderr


def test_any_program_can_be_run() -> None:
    result = Sandbox(kind="bubblewrap").run(Program(argv=["sort", "-n"], stdin=b"10\n9\n"))
    assert result.stdout == b"9\n10\n"


def test_a_named_folder_can_be_read_and_imported_from(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 5")
    tmp_path.chmod(0o755)
    assert Sandbox(folders=[tmp_path], kind="bubblewrap").run(Program("import mine; print(mine.x)")).stdout == b"5\n"
    assert b"No module named 'mine'" in run("import mine").stderr


def test_the_same_program_gives_the_same_result() -> None:
    source = "import os; print({chr(x) for x in range(60)}, sorted(os.environ.items()), os.getpid(), os.getuid())"
    assert run(source).stdout == run(source).stdout


# Limits


@pytest.mark.parametrize(
    ("source", "limits", "limit"),
    [
        ("import time; time.sleep(60)", {"wall_s": 0.3}, "wall"),
        ("while True: pass", {"cpu_s": 1}, "cpu"),
        ("import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", {"cpu_s": 1}, "cpu"),
        ("bytearray(300 << 20)", {"memory_mb": 200}, "memory"),
        ("import os; os.fork()", {}, "processes"),
        ("import threading; threading.Thread(target=print).start()", {}, "processes"),
        ("while True: print('x' * 1000)", {"output_kb": 8}, "output"),
        ("for n in range(50): open(str(n), 'w')", {"files": 20}, "files"),
        ("open('x', 'wb').write(bytes(2 << 20))", {"disk_mb": 1}, "files"),
    ],
)
def test_the_limit_it_met_is_reported(source: str, limits: dict[str, Any], limit: str) -> None:
    assert run(source, **limits).limit == limit


def test_processes_share_the_memory() -> None:
    eat = "import os\nif os.fork(): os.wait()\nblock = bytearray(%d << 20)\nprint('fits')"
    assert run(eat % 40, processes=2, memory_mb=200).stdout == b"fits\nfits\n"
    assert run(eat % 120, processes=2, memory_mb=200).stdout == b""


def test_a_flood_of_output_ends_at_once() -> None:
    result = run("import os\nwhile True: os.write(1, bytes(1 << 16)); os.write(2, bytes(1 << 16))", output_kb=8)
    assert (result.limit, result.exit_code) == ("output", 137)
    assert result.wall_s < 30


def test_output_is_cut_at_its_bound() -> None:
    assert len(run("print('x' * 100000)", output_kb=1).stdout) == 1024


def test_a_program_that_hangs_takes_no_longer_than_its_limit() -> None:
    worker = Sandbox(Limits(wall_s=0.5), kind="bubblewrap").start()
    with worker:
        worker.run(Program())  # the worker has started
    begun = time.monotonic()
    result = run("import time; time.sleep(60)", wall_s=0.5)
    assert 0.5 <= result.wall_s < 5
    assert time.monotonic() - begun < 10


def test_what_a_program_started_ends_with_it() -> None:
    before = psutil.Process().children(recursive=True)
    source = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)"
    assert run(source, processes=3).exit_code == 0
    assert psutil.Process().children(recursive=True) == before


# The pool


def test_a_pool_keeps_the_order_and_nothing_else() -> None:
    before = psutil.Process().children(recursive=True)
    gc.collect()  # close the descriptors of other tests
    descriptors = len([*Path("/proc/self/fd").iterdir()])
    programs = [Program(f"import os\nprint({number}, os.listdir('.'))\nopen('left', 'w')") for number in range(20)]
    with Pool(Sandbox(kind="bubblewrap"), 2) as pool:
        results = pool.map(programs)
    assert [result.stdout.decode() for result in results] == [f"{number} []\n" for number in range(20)]
    assert psutil.Process().children(recursive=True) == before
    assert len([*Path("/proc/self/fd").iterdir()]) <= descriptors


def test_a_process_with_many_open_files_can_use_it() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2048, hard)), hard))
    with ExitStack() as files:
        for _ in range(1100):
            files.enter_context(Path(os.devnull).open())
        assert run("while True: pass", wall_s=0.5).limit == "wall"


# Refused sandboxes


@pytest.mark.long
def test_a_sandbox_that_does_not_hold_is_not_used() -> None:
    def start(limits: Limits, folders: object) -> Worker:
        more = Limits(wall_s=limits.wall_s, memory_mb=4096, processes=8, disk_mb=100, files=10_000)
        return chooser.KINDS["bubblewrap"](more, [])

    assert "more processes than the limit" in faults(start, 2)
    assert "more memory than the limit" in faults(start, 2)


def test_without_a_sandbox_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chooser, "unusable", lambda kind: f"no {kind} here")
    with pytest.raises(NoSandbox, match=r"(?s)no bubblewrap here.*no sandlock here.*apt-get install bubblewrap"):
        Sandbox()
