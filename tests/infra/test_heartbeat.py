"""Heartbeats within a phase."""

import time
from pathlib import Path

from baton.infra.process.heartbeat import Heartbeat, read_beats


def test_a_rank_that_is_not_yet_expected_to_report_stays_so(tmp_path: Path) -> None:
    Heartbeat(tmp_path, 0).repeat()
    assert read_beats(tmp_path, [0])[0].phase is None


def test_a_phase_with_a_time_limit_of_its_own_is_reported_every_second(tmp_path: Path) -> None:
    heart = Heartbeat(tmp_path, 0)
    heart.beat(3, "rewards")
    first = read_beats(tmp_path, [0])[0]
    with heart.repeated():
        time.sleep(1.5)
    second = read_beats(tmp_path, [0])[0]
    time.sleep(1.2)
    assert (second.step, second.phase) == (3, "rewards") and second.time > first.time
    assert read_beats(tmp_path, [0])[0] == second
