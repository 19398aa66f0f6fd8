"""The record of an engine's death for the next pod of an execution."""

from pathlib import Path

import pytest

from baton.infra.process.death import Death, death, unvarying
from baton.tasks.core.deaths import earlier_death, note_death


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
    said = ("RuntimeError: pair 0x7f of pid 12 in /tmp/tmpqx_ab", "RuntimeError: pair 0xab of pid 9 in /tmp/tmpzk_cd")
    one, other = (death([3, 4], unvarying(error), "") for error in said)
    assert one == other != death([5], unvarying(said[0]), "")
    assert death([3], "ended with exit code 3", "") != death([3], "ended with exit code 7", "")
    assert death([], "died", "") is None


def test_a_death_that_cannot_be_stored_does_not_hide_the_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job").touch()
    note_death(Death(8, "was killed by SIGABRT"), tmp_path / "job", None, 0)
    assert "the next start will not know how this one ended" in capfd.readouterr().err
