"""The choice of the checkpoint from which a training continues."""

from pathlib import Path

import pytest

from baton.infra.storage.durable import remove
from baton.tasks.core.checkpoints import CheckpointFolder
from baton.tasks.core.manifest import ArtifactError, write_manifest


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    """A folder with the complete checkpoints of steps 5, 20 and 100."""
    for step in (5, 20, 100):
        path = tmp_path / f"checkpoint-{step}"
        path.mkdir()
        (path / "optimizer.pt").write_bytes(b"moments")
        write_manifest(path, "training_state", {"step": step})
    return CheckpointFolder(tmp_path, "checkpoint-")


def damage(folder: CheckpointFolder, step: int) -> None:
    (folder.path / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"momentz")


def test_the_newest_is_found_by_its_step(folder: CheckpointFolder) -> None:
    assert folder.newest() == folder.path / "checkpoint-100"


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path, "checkpoint-").newest() is None
    assert CheckpointFolder(tmp_path / "not-there", "checkpoint-").newest() is None


def test_an_incomplete_one_is_removed(folder: CheckpointFolder) -> None:
    (folder.path / "checkpoint-120").mkdir()
    (folder.path / "checkpoint-120" / "optimizer.pt").touch()

    assert folder.newest() == folder.path / "checkpoint-100"
    assert not (folder.path / "checkpoint-120").exists()


def test_a_damaged_one_is_set_aside_for_the_one_before_it(
    folder: CheckpointFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(folder, 100)
    (folder.path / "checkpoint-20" / "manifest.json").write_text("")

    assert folder.newest() == folder.path / "checkpoint-5"
    said = capsys.readouterr().out
    assert "checkpoint-100 is damaged: optimizer.pt was changed. It is kept as" in said
    assert "checkpoint-20/manifest.json: not a manifest" in said
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "checkpoint-5",
        "damaged-checkpoint-100",
        "damaged-checkpoint-20",
    ]


def test_a_step_can_be_damaged_twice(folder: CheckpointFolder) -> None:
    damage(folder, 100)
    (folder.path / "damaged-checkpoint-100" / "from an earlier start").mkdir(parents=True)

    assert folder.newest() == folder.path / "checkpoint-20"


def test_where_all_are_damaged_every_start_says_so(folder: CheckpointFolder) -> None:
    for step in (5, 20, 100):
        damage(folder, step)

    for _ in range(2):
        with pytest.raises(ArtifactError, match=r"every checkpoint is damaged\. Restore one .* or delete the folder"):
            folder.newest()


def test_what_is_not_named_like_a_checkpoint_is_left_alone(folder: CheckpointFolder) -> None:
    others = [folder.path / name for name in ("checkpoint-100.bak", "checkpoint-old", "README.md")]
    for path in others:
        path.mkdir()

    assert folder.newest() == folder.path / "checkpoint-100"
    assert all(path.exists() for path in others)


def test_one_whose_removal_was_cut_short_is_incomplete(
    folder: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.tasks.core.checkpoints.shutil.rmtree", lambda *_, **__: None)  # killed at this point
    remove(folder.path / "checkpoint-100")

    assert (folder.path / "checkpoint-100" / "optimizer.pt").exists()
    assert folder.newest() == folder.path / "checkpoint-20"
