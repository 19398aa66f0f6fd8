"""The diagnosis of a hang from the stacks and heartbeats of the ranks."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.infra.process.hang_diagnosis import judge
from baton.infra.process.heartbeat import PHASES, RECORD_BYTES, Beat, Heartbeat, Phase, rank_file, read_beats

HERE = Path(__file__)


def beat(step: int, phase: Phase) -> Beat:
    return Beat(pid=os.getpid(), phase=phase, step=step, began=0, time=0.0)


def stack(words: str) -> str:
    """Return the stack of two threads as faulthandler prints it. The main thread, which is the last, is at the first
    line of this file that contains these words."""
    line = next(number for number, text in enumerate(HERE.read_text().splitlines(), start=1) if words in text)
    other = 'Thread 0x01 (most recent call first):\n  File "threading.py", line 1 in run\n'
    return f'{other}\nCurrent thread 0x02 (most recent call first):\n  File "{HERE}", line {line} in step\n'


BUSY = stack("def beat(")
WAITING = stack("# work.wait()")


def test_a_rank_that_does_not_answer_is_to_blame_whoever_is_behind() -> None:
    hang = judge({0: beat(4, "data"), 1: beat(5, "data")}, {0: BUSY, 1: ""}, [], 600)
    assert hang.ranks == [1]
    assert "rank 1 hangs: no heartbeat for 600 s at step 5, data; it does not respond" in hang.summary


def test_a_rank_that_never_got_to_work_is_to_blame() -> None:
    hang = judge({0: beat(0, "start"), 2: beat(0, "start")}, {0: WAITING, 2: WAITING}, [1], 600)
    assert hang.ranks == [1]
    assert "rank 1 has not started: the others wait at step 0, start" in hang.summary


@pytest.mark.parametrize(
    ("behind", "others"),
    [((3, "optimizer"), (4, "validation")), ((4, "checkpoint"), (4, "data")), ((4, "data"), (4, "forward-backward"))],
)
def test_a_rank_that_is_behind_is_to_blame(behind: tuple[int, Phase], others: tuple[int, Phase]) -> None:
    beats = {0: beat(*others), 1: beat(*behind), 2: beat(*others)}
    hang = judge(beats, {0: BUSY, 1: WAITING, 2: WAITING}, [], 600)
    assert hang.ranks == [1]
    assert f"the others are at step {others[0]}, {others[1]}" in hang.summary


def test_of_ranks_that_are_equally_far_those_that_do_not_wait_are_to_blame() -> None:
    beats = dict.fromkeys(range(4), beat(4, "forward-backward"))
    hang = judge(beats, {0: WAITING, 1: BUSY, 2: WAITING, 3: BUSY}, [], 600)
    assert hang.ranks == [1, 3]
    assert "ranks 1, 3 hang" in hang.summary
    assert "in step" in hang.stacks


@pytest.mark.parametrize("stacks", [WAITING, BUSY])
def test_nobody_is_blamed_when_all_look_alike(stacks: str) -> None:
    hang = judge(dict.fromkeys(range(4), beat(4, "optimizer")), dict.fromkeys(range(4), stacks), [], 600)
    assert hang.summary.startswith("all 4 ranks stopped: no heartbeat for 600 s at step 4, optimizer")
    assert "cannot be determined" in hang.summary


def test_a_lone_process_is_to_blame_whatever_it_waits_for() -> None:
    assert "rank 0 hangs" in judge({0: beat(4, "data")}, {0: WAITING}, [], 600).summary


# Heartbeats


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 10**9), st.sampled_from(PHASES)), min_size=1))
def test_a_beat_is_read_as_it_was_made(tmp_path_factory: pytest.TempPathFactory, said: list[tuple[int, Phase]]) -> None:
    job = tmp_path_factory.mktemp("job")
    heart = Heartbeat(job, 3)
    for step, phase in said:
        heart.beat(step, phase)
    read = read_beats(job, range(8))
    assert [(rank, beat.pid, beat.step, beat.phase) for rank, beat in read.items()] == [(3, os.getpid(), *said[-1])]
    assert rank_file(job, 3, "json").stat().st_size == RECORD_BYTES


def test_what_was_resumed_is_not_counted_as_progress(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path, 0)
    heart.beat(0, "start")
    heart.beat(100, "data")
    assert read_beats(tmp_path, [0])[0].began == 100


def test_a_rank_is_judged_from_its_first_beat_until_it_hands_over(tmp_path: Path) -> None:
    def judged() -> bool:
        return read_beats(tmp_path, [0])[0].judged

    heart = Heartbeat(tmp_path, 0)
    assert not judged()
    for phase in PHASES[:-2]:
        heart.beat(0, phase)
        assert judged(), phase
    heart.beat(0, "hand-over")
    assert not judged()
    heart.end()
    assert not judged()


def test_a_beat_costs_far_less_than_a_step(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path, 0)
    heart.beat(0, "start")
    took = []
    for step in range(200):
        started = time.perf_counter()
        heart.beat(step, "data")
        took.append(time.perf_counter() - started)
    assert sorted(took)[100] < 1e-4
