"""All processes in a program's group are ended, and no others."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from baton.infra.process.hang_diagnosis import collect_stacks
from baton.infra.process.heartbeat import Beat, Heartbeat, rank_file, read_beats
from baton.infra.process.peers import Peers
from baton.infra.process.process_group import stop_group
from baton.infra.process.process_id import has_ended, start_time, this_process
from baton.infra.process.supervisor import Supervisor
from baton.tasks.posttrain.methods.grpo.rollout_servers import stop
from tests.source import ROOT

Group = tuple["subprocess.Popen[bytes]", psutil.Process]


def group(program: str, trap: str = "") -> Group:
    """Start a leader with a child; returns both."""
    words = ["sh", "-c", f"{trap}\nsleep 600 & echo $!; exec 1>&-; {program}"]
    leader = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.PIPE, start_new_session=True)
    assert leader.stdout
    return leader, psutil.Process(int(leader.stdout.readline()))


def gone(process: psutil.Process) -> bool:
    return not psutil.wait_procs([process], timeout=5)[1]


@pytest.fixture
def bystander() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has the pid of a process that has ended."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("end", [stop_group, lambda leader: stop([leader])], ids=["stop_group", "rollout engines"])
@pytest.mark.parametrize("reaped", [True, False])
def test_what_a_leader_left_is_killed(end: Callable[["subprocess.Popen[bytes]"], None], reaped: bool) -> None:
    leader, child = group("exit 1")
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    if reaped:
        leader.wait()
    end(leader)
    assert gone(child)
    assert leader.returncode == 1


def test_a_group_may_end_by_itself_within_its_grace() -> None:
    leader, child = group("while :; do sleep 0.01; done", "trap 'exit 7' TERM")
    stop_group(leader, 10)
    assert leader.returncode == 7
    assert gone(child)


def test_a_group_that_is_stopped_or_ignores_sigterm_is_killed() -> None:
    leader, child = group("while :; do sleep 1; done", "trap '' TERM")
    child.suspend()
    began = time.monotonic()
    stop_group(leader, 0.3)
    assert time.monotonic() - began < 3
    assert leader.returncode == -signal.SIGKILL
    assert gone(child)


def test_a_group_is_stopped_twice_without_harm() -> None:
    leader, _ = group("exit 0")
    stop_group(leader)
    stop_group(leader)


def earlier(pid: int) -> Beat:
    """Return the record of a process that had this pid before."""
    started = start_time(pid)
    assert started
    return Beat(pid, "optimizer", 3, 1, 0.0, started - 1)


def test_another_process_that_got_a_rank_s_pid_is_left_alone(
    tmp_path: Path, bystander: "subprocess.Popen[bytes]"
) -> None:
    """torchrun has reaped the rank; on a machine with few pids, a new process may get its pid."""
    supervisor = Supervisor(tmp_path, range(1), 600, Peers(tmp_path, []))
    supervisor.beats = {0: earlier(bystander.pid)}
    assert not supervisor.beats[0].alive
    supervisor.kill_ranks()
    rank_file(tmp_path, 0, "stacks").parent.mkdir(parents=True)
    rank_file(tmp_path, 0, "stacks").touch()
    assert collect_stacks(tmp_path, supervisor.beats) == {0: ""}  # the signal for stacks would end the bystander
    assert supervisor.killed == set()
    assert bystander.poll() is None


def test_a_rank_s_children_are_killed_after_it_was_reaped(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, range(1), 600, Peers(tmp_path, []))
    leader, child = group("sleep 600")
    started = start_time(leader.pid)
    assert started
    supervisor.beats = {0: Beat(leader.pid, "optimizer", 3, 1, 0.0, started)}
    assert supervisor.beats[0].alive
    leader.kill()
    leader.wait()
    supervisor.kill_ranks()
    assert gone(child)


def test_a_rank_says_when_it_was_started(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path, 0)
    heart.beat(10**12, "forward-backward")
    assert read_beats(tmp_path, [0])[0].alive


def test_a_process_is_known_to_have_ended_on_its_machine_only() -> None:
    me = this_process()
    pid, host, pids, started = me.split()
    assert has_ended(me) is False
    assert has_ended(f"{pid} {host} {pids} {int(started) - 1}") is True  # the earlier process with this pid
    assert has_ended(f"{pid} {host} another-boot/pid:[1] {started}") is None
    assert has_ended("1") is None
    program = "from baton.infra.process.process_id import this_process; print(this_process())"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert has_ended(ended.stdout.strip()) is True
