"""If a conversion is killed before any of its changes to the disk, it leaves the old target or the new one, complete,
and the next conversion succeeds as if nothing had happened."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.convert.partial_dir import Partial
from baton.tasks.models.errors import ConversionError
from tests.convert.test_target import files

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}
Folder = dict[str, bytes]


def convert(target: Path, text: str, replace: bool) -> None:
    """Convert a text."""
    with Partial(target, ["weights", "config.json", "record/more"], [], replace) as making:
        (making.folder / "record").mkdir()
        for name, content in content_of(text).items():
            (making.folder / name).write_bytes(content)
        making.finish()


def content_of(text: str) -> Folder:
    config = json.dumps({"model_type": text}).encode()
    return {"weights": text.encode(), "config.json": config, "record/more": config}


def killed(before: int, target: Path, text: str, replace: bool) -> bool:
    """Convert in a process that is killed just before its n-th change to the disk; returns whether there was one."""
    if pid := os.fork():
        return os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    left = before

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_CREAT | os.O_TRUNC)
        left -= event in CHANGES or bool(opened)
        if left < 0 and event != "os.kill":
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    try:
        convert(target, text, replace)
    finally:
        os._exit(0)


def old_target(root: Path) -> None:
    convert(root / "target", "old", replace=False)


def another_one_unfinished(root: Path, replace: bool = False) -> None:
    before = 0
    while not (root / "target.partial" / "content" / "config.json").exists():
        assert killed(before, root / "target", "another", replace)
        before += 1


def both(root: Path) -> None:
    old_target(root)
    another_one_unfinished(root, replace=True)


def nothing(root: Path) -> None:
    pass


@pytest.mark.long
@pytest.mark.parametrize("start", [nothing, old_target, another_one_unfinished, both])
@pytest.mark.parametrize(("next_one", "kills"), [("new", 1), ("a third", 2)])
def test_killed_at_any_moment(start: Callable[[Path], None], next_one: str, kills: int, tmp_path: Path) -> None:
    replace = start in (old_target, both)
    before, states = 0, 0
    (tmp_path / "start").mkdir()
    start(tmp_path / "start")
    while True:
        root = Path(shutil.copytree(tmp_path / "start", tmp_path / str(before)))
        target = root / "target"
        if not killed(before, target, "new", replace):
            break
        if kills == 2:
            killed(before // 2, target, next_one, replace)
        assert_complete(target, [content_of(text) for text in ("old", "new", next_one)], replace)
        try:
            convert(target, next_one, replace)
        except ConversionError as error:
            assert "target: exists" in str(error)
            assert not replace
            assert files(target) == content_of("new")
            convert(target, next_one, replace=True)
        assert files(target) == content_of(next_one)
        assert [path.name for path in root.iterdir()] == ["target"]
        before, states = before + 1, states + 1
    assert states > 10
    assert files(root / "target") == content_of("new")


def assert_complete(target: Path, allowed: list[Folder], replaced: bool) -> None:
    """Check that the old or the new model is at the target, or that the old one is next to it if nothing is at the
    target."""
    place = target if target.exists() else target.with_name("target.partial") / "replaced"
    if replaced or place.exists():
        assert files(place) in allowed


def test_what_comes_into_being_at_the_target_after_a_kill_is_not_deleted(tmp_path: Path) -> None:
    """While neither the old nor the new model is in place, another process creates the target."""
    for before in range(100):
        target = tmp_path / str(before) / "target"
        target.parent.mkdir()
        old_target(target.parent)
        assert killed(before, target, "new", replace=True)
        if not target.exists():
            break
    convert(tmp_path / "somebody's", "somebody's", replace=False)
    (tmp_path / "somebody's").rename(target)
    before_that = files(target.parent)
    with pytest.raises(ConversionError, match="move one of them"):
        convert(target, "new", replace=True)
    assert files(target.parent) == before_that


def test_everything_is_synced_before_anything_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The renames are synced before anything is deleted."""
    old_target(tmp_path)
    log: list[tuple[str, str]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        log.append(("sync", name(Path(f"/proc/self/fd/{descriptor}").readlink())))
        fsync(descriptor)

    def name(path: Path) -> str:
        return str(path.relative_to(tmp_path.parent)) if path.is_relative_to(tmp_path.parent) else str(path)

    watching = True

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in {"os.rename", "os.rmdir", "os.remove", "shutil.rmtree"}:
            log.append((event, str(arguments[0])))

    monkeypatch.setattr(os, "fsync", noted)
    sys.addaudithook(audit)
    convert(tmp_path / "target", "new", replace=True)
    watching = False
    place = f"{tmp_path.name}/target.partial"
    renames = [at for at, (event, _) in enumerate(log) if event == "os.rename"]
    assert len(renames) == 2
    synced = {path for event, path in log[: renames[0]] if event == "sync"}
    assert {f"{place}/content/{path}" for path in content_of("new")} <= synced
    assert {place, f"{place}/content", f"{place}/content/record"} <= synced
    deletion = next(at for at, (event, path) in enumerate(log) if event == "shutil.rmtree")
    assert renames[1] < deletion
    assert tmp_path.name in {path for event, path in log[renames[1] : deletion] if event == "sync"}
