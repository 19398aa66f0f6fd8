"""What the next pod of an execution knows of an engine's death."""

from pathlib import Path

import pytest

from infra.process.death import Death, death, unvarying
from tasks.core.deaths import earlier_death, note_death


def test_the_same_execution_knows_it_and_a_later_one_starts_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = Death(8, "was killed by SIGABRT", "orpo: rank 1 was killed by SIGABRT")
    monkeypatch.setenv("BATON_EXECUTION", "one")
    assert earlier_death(tmp_path, None, 0) is None
    note_death(died, tmp_path, None, 0)
    assert earlier_death(tmp_path, None, 0) == died

    monkeypatch.setenv("BATON_EXECUTION", "two")
    assert earlier_death(tmp_path, None, 0) is None


def test_addresses_and_process_ids_do_not_make_another_death() -> None:
    said = ("RuntimeError: pair 0x7f of pid 12", "RuntimeError: pair 0xab of pid 9")
    one, other = (death([3, 4], unvarying(error), "") for error in said)
    assert one == other != death([5], unvarying(said[0]), "")
    assert death([3], "ended with exit code 3", "") != death([3], "ended with exit code 7", "")
    assert death([], "died", "") is None
