"""A new folder appears completely or not at all."""

import os
from pathlib import Path

import pytest

from baton.infra.storage.durable import new_folder


def test_the_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "made") as folder:
        (folder / "a.txt").write_text("a")
        assert not (tmp_path / "deep" / "made").exists()
    assert (tmp_path / "deep" / "made" / "a.txt").read_text() == "a"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["made"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="half"), new_folder(tmp_path / "made") as folder:
        (folder / "a.txt").write_text("a")
        raise ValueError("half")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_another_process_has_made_meanwhile_stays(tmp_path: Path) -> None:
    with new_folder(tmp_path / "made") as folder:
        (folder / "a.txt").write_text("second")
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "a.txt").write_text("first")
    assert (tmp_path / "made" / "a.txt").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_leftovers_of_a_killed_process_with_the_same_id_are_removed(tmp_path: Path) -> None:
    left = tmp_path / f"made.{os.getpid()}.partial"
    left.mkdir()
    (left / "old.txt").touch()
    with new_folder(tmp_path / "made") as folder:
        assert not list(folder.iterdir())
