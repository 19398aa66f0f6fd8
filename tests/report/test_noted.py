"""What the report's pod records of stages that had none, since Flyte's cache served them."""

from pathlib import Path

import pytest

from infra.tracking.execution import current_execution
from infra.tracking.spool import read_stage, stage_folders
from tasks.manifest import write_manifest
from tasks.report.task import _note
from tests.stage.chain import Text
from tests.tracking.conftest import empty_store, home

__all__ = ["empty_store", "home"]


def text(folder: Path, title: str, *made_from: Text) -> Text:
    folder.mkdir()
    (folder / "text.txt").write_text(folder.name)
    parents = {f"parts.{number}": each.digest for number, each in enumerate(made_from)}
    write_manifest(folder, "text", {"letters": 1}, {}, parents, title=title)
    return Text.from_directory(folder)


def test_each_is_noted_by_the_title_of_its_run_after_what_it_was_made_of(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flyte hands over the artifacts in any order, and two sets of rows are two stages of one title."""
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e1")
    ours, theirs = text(tmp_path / "a", "rows"), text(tmp_path / "b", "rows")
    model = text(tmp_path / "c", "sft", ours, theirs)
    _note([text(tmp_path / "d", "publish", model), model, theirs, ours])
    found = [read_stage(folder) for folder in stage_folders(current_execution("report"))]
    found.sort(key=lambda run: run.started)
    assert [run.title for run in found] == ["rows", "rows", "sft", "publish"]
    assert all(run.cached for run in found) and len({(run.output or {})["digest"] for run in found}) == 4
