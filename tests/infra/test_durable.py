"""A file is replaced completely or not at all."""

from pathlib import Path

import pytest

from baton.infra.storage.durable import replacement


@pytest.mark.parametrize("synced", [True, False])
def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path, synced: bool) -> None:
    (tmp_path / "file").write_text("old")
    with replacement(tmp_path / "file", synced) as partial:
        partial.write_text("new")
        assert (tmp_path / "file").read_text() == "old"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "new")]


def test_an_error_leaves_the_old_file_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(ValueError, match="half"), replacement(tmp_path / "file") as partial:
        partial.write_text("n")
        raise ValueError("half")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "old")]


def test_the_last_of_two_writers_wins(tmp_path: Path) -> None:
    with replacement(tmp_path / "file") as first, replacement(tmp_path / "file") as second:
        first.write_text("first")
        second.write_text("second")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "first")]
