"""Ranks that die or hang, as real processes under torchrun: which rank is named, how soon the engine ends, and what is
restarted."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from baton.infra.process.death import Death
from baton.infra.process.heartbeat import Heartbeat
from baton.infra.process.launch import Engine, EngineFailed, run_engine
from baton.infra.process.peers import Peers
from baton.infra.process.torchrun_env import NotPlaced
from tests.infra.launcher import request
from tests.infra.test_launch import processes_of

pytestmark = pytest.mark.long

MODULE = "tests.infra.engines.steps"
HANG_S = 3.0
END_S = 60.0  # required maximum time after the timeout or the death of a rank
TOTAL = f"{sum(3 * (step + 1) for step in range(6)):g}"  # total of two ranks in six undisturbed steps


def train(job_dir: Path, what: str, *, max_restarts: int = 0, died: Death | None = None, **spec: Any) -> str:
    """Run two ranks; returns their total."""
    words = request({"what": what, **spec})
    engine = Engine("toy", MODULE, "1")
    output = run_engine(
        engine, job_dir, words, title="toy", processes=2, max_restarts=max_restarts, hang_timeout_s=HANG_S, died=died
    )
    return (output / "total.txt").read_text()


def last_words(job_dir: Path, what: str, *, max_restarts: int = 0, **spec: Any) -> str:
    """Return the message of an engine that fails, and check that no process is left."""
    with pytest.raises(EngineFailed) as failed:
        train(job_dir, what, max_restarts=max_restarts, **spec)
    assert not processes_of(job_dir)
    return str(failed.value)


def starts(job_dir: Path, rank: int = 0) -> int:
    return len((job_dir / "work" / f"starts-{rank}").read_text().split())


def seconds_since_trouble(job_dir: Path) -> float:
    """Return the seconds since rank 1 printed its last line, directly before the trouble."""
    return time.time() - (job_dir / "log-rank-1.txt").stat().st_mtime


# Ranks that hang


def test_a_rank_that_does_not_come_to_the_collective_is_named_with_its_stack_and_last_lines(tmp_path: Path) -> None:
    said = last_words(tmp_path, "computes for ever")
    assert seconds_since_trouble(tmp_path) < HANG_S + END_S
    first, *more = said.splitlines()
    assert first == "toy: rank 1 hangs: no heartbeat for 3 s at step 3, forward-backward, where the others wait for it."
    assert more[0] == "  Stack of rank 1:"
    assert more[1].endswith("in _loop")
    assert [line.strip() for line in more[-5:-1]] == [f"rank 1 takes step {step}" for step in range(4)]
    assert more[-1] == f"  Folder: {tmp_path}"


def test_ranks_that_wait_for_each_other_are_not_told_apart(tmp_path: Path) -> None:
    said = last_words(tmp_path, "waits for another")
    assert "all 2 ranks stopped: no heartbeat for 3 s at step 3, forward-backward" in said
    assert "the cause cannot be determined" in said
    assert said.count("in recv") == 2


def test_after_a_hang_it_goes_on_from_the_checkpoint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "is stopped", once=True, max_restarts=1) == TOTAL
    message = (
        "toy: rank 1 hangs: no heartbeat for 3 s at step 3, data; it does not respond (T (stopped)); "
        "starting again from the newest checkpoint, restart 1 of 1"
    )
    assert message in capfd.readouterr().err
    assert message in (tmp_path / "log.txt").read_text()
    assert "rank 0 takes step 2\nrank 0 takes step 3\nrank 0 takes step 4" in (tmp_path / "log.txt").read_text()
    assert not processes_of(tmp_path)


def test_who_waits_for_a_slow_rank_is_not_taken_for_hanging(tmp_path: Path) -> None:
    assert train(tmp_path, "is slow") == TOTAL


# Ranks that die


def test_a_death_at_the_same_step_in_the_same_way_is_not_tried_a_third_time(tmp_path: Path) -> None:
    said = last_words(tmp_path, "ends silently", max_restarts=3)
    assert (
        "toy: rank 1 ended with exit code 3 at step 3, data (after 1 restart; the second failure of this kind at "
        "step 3, so it is not started a third time). Its last lines:\n    rank 1"
    ) in said
    assert "rank 0" not in said
    assert starts(tmp_path) == 2


def test_a_death_in_another_way_names_the_one_before(tmp_path: Path) -> None:
    said = last_words(tmp_path, "is killed", then="ends silently", max_restarts=1)
    assert re.search(
        r"toy: rank 1 ended with exit code 3 at step 3, data \(after 1 restart; the previous start ended differently: "
        r"toy: rank 1 was killed by SIGKILL.* at step 3, data\)\. Its last lines:\n",
        said,
    )


def test_two_deaths_in_turn_are_not_tried_for_ever(tmp_path: Path) -> None:
    said = last_words(tmp_path, "is killed", then="ends silently", max_restarts=5)
    assert "(after 2 restarts; the second failure of this kind at step 3, so it is not started a third time)" in said
    assert starts(tmp_path) == 3


def test_a_pod_does_not_try_what_killed_the_pods_before_it(tmp_path: Path) -> None:
    """A pod starts the engine once, and Flyte starts the pod again as long as this may help."""
    failures: list[EngineFailed] = []
    for pod in ("one", "two"):
        with pytest.raises(EngineFailed) as failed:
            train(tmp_path / pod, "ends silently", died=failures[-1].death if failures else None)
        failures.append(failed.value)
    assert [failure.curable for failure in failures] == [True, False]
    assert "(the second failure of this kind at step 3, so it is not started a third time)" in str(failures[1])


def test_ranks_that_do_not_notice_a_death_are_ended(tmp_path: Path) -> None:
    said = last_words(tmp_path, "is killed unnoticed")
    assert seconds_since_trouble(tmp_path) < END_S
    assert said.startswith("toy: rank 1 was killed by SIGKILL")
    assert "rank 1 takes step 3" in said


def test_a_rank_that_fails_and_does_not_end_is_ended(tmp_path: Path) -> None:
    said = last_words(tmp_path, "does not end")
    assert seconds_since_trouble(tmp_path) < END_S
    assert said.startswith("toy: rank 1: ValueError: rank-specific trouble")


# Failures that a restart would not cure


def test_what_a_person_must_change_is_not_tried_again(tmp_path: Path) -> None:
    said = last_words(tmp_path, "refuses", max_restarts=3)
    assert said.startswith("toy: the last rank has no data: take fewer ranks")
    assert starts(tmp_path) == 1


def test_what_fails_before_a_step_is_done_is_not_tried_again(tmp_path: Path) -> None:
    said = last_words(tmp_path, "raises", step=0, max_restarts=3)
    assert "toy: rank 1: ValueError: rank-specific trouble (not restarted: it had not completed a step)" in said
    assert starts(tmp_path) == 1


def test_a_full_disk_is_not_tried_again(tmp_path: Path) -> None:
    job = tmp_path / "job"
    spec = json.dumps({"what": "fills the disk", "rank": 0})
    words = [sys.executable, "-m", "tests.infra.launcher", MODULE, str(job), spec, "1", "1", "3"]
    counted = job / "work" / "starts-0"
    on_a_small_disk = f"mount -t tmpfs -o size=2m tmpfs {tmp_path} && {shlex.join(words)}; wc -l {counted}"
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", on_a_small_disk]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert "is full" in ended.stderr or "No space left" in ended.stderr
    assert "starting again" not in ended.stderr
    assert ended.stdout.startswith("1 ")


# Several machines


def on_two_machines(*job_dirs: Path, what: str, rank: int = 1) -> list[subprocess.Popen[str]]:
    """Start two launchers with one rank and one restart each, which meet at the address of the placement. They share a
    folder, or have a folder each."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    spec = json.dumps({"what": what, "once": True, "rank": rank})
    command = [sys.executable, "-m", "tests.infra.launcher", MODULE]
    apart = str(len(job_dirs) - 1)
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [*command, str(job_dirs[node % len(job_dirs)]), spec, "1", "2", "1", apart],
            env=os.environ | meeting | {"NODE_RANK": str(node)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in (0, 1)
    ]


@pytest.mark.parametrize("what", ["is killed", "is killed unnoticed"])
def test_a_rank_that_dies_on_another_machine_is_replaced(tmp_path: Path, what: str) -> None:
    launchers = on_two_machines(tmp_path, what=what)
    said = [launcher.communicate(timeout=300)[1] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    assert re.search(r"toy: rank 1 was killed by SIGKILL .* restart 1 of 1", said[1])
    if what == "is killed unnoticed":
        assert "toy: rank 1, on another machine, ended; starting again from the newest checkpoint" in said[0]
    assert (tmp_path / "output" / "total.txt").read_text() == TOTAL
    assert not processes_of(tmp_path)


def test_a_lost_machine_is_not_waited_for_without_end(tmp_path: Path) -> None:
    """A placement would then start all machines again."""
    Heartbeat(tmp_path, 1).beat(3, "data")
    peers = Peers(tmp_path, [1])
    assert peers.look() and peers.wait_until_stopped(0.5) == 1


def test_of_machines_that_share_no_folder_the_first_has_the_result(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    launchers = on_two_machines(first, other, what="nothing")
    said = [launcher.communicate(timeout=300)[1] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    assert all("✓ toy" in each for each in said)
    assert (first / "output" / "total.txt").read_text() == TOTAL and not (other / "output").exists()


@pytest.mark.parametrize(("what", "rank"), [("is killed", 0), ("is killed", 1), ("is killed unnoticed", 0)])
def test_machines_that_share_no_folder_end_together_and_are_started_anew(tmp_path: Path, what: str, rank: int) -> None:
    launchers = on_two_machines(tmp_path / "first", tmp_path / "other", what=what, rank=rank)
    said = [launcher.communicate(timeout=120)[1] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [1, 1], said
    assert f"toy: rank {rank} was killed by SIGKILL" in said[rank]
    assert not any("starting again" in each for each in said)
    assert (starts(tmp_path / "first", 0), starts(tmp_path / "other", 1)) == (1, 1)
    assert not processes_of(tmp_path)


def test_several_machines_need_a_placement(tmp_path: Path) -> None:
    with pytest.raises(
        NotPlaced, match=r"layout.nodes: 2: needs a placement, .* NODE_RANK, .*; or set layout.nodes: 1"
    ):
        run_engine(Engine("toy", MODULE, "1"), tmp_path, request({}), title="toy", processes=1, nodes=2)
