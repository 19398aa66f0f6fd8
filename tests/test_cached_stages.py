"""The records that pods write for stages that had no pod, since Flyte's cache served them."""

from pathlib import Path

import pytest

from baton.infra.flyte.options import Options
from baton.infra.tracking.execution import current_execution
from baton.infra.tracking.spool import StageRun, read_stage, stage_folders
from baton.tasks.cached_stages import note_upstream, note_used
from baton.tasks.core.manifest import read_manifest, write_manifest
from tests.stage.chain import Text
from tests.tracking.conftest import empty_store, home

__all__ = ["empty_store", "home"]


def text(folder: Path, title: str, *made_from: Text) -> Text:
    folder.mkdir()
    (folder / "text.txt").write_text(folder.name)
    parents = {f"parts.{number}": each.digest for number, each in enumerate(made_from)}
    identities = {f"parts.{number}": each.key for number, each in enumerate(made_from)}
    write_manifest(folder, "text", {"letters": 1}, {}, parents, title=title, identities=identities)
    return Text.from_directory(folder)


def noted() -> list[StageRun]:
    found = [read_stage(folder) for folder in stage_folders(current_execution("report"))]
    return sorted(found, key=lambda run: run.started)


def stored(store: Path, title: str, *made_from: Text) -> Text:
    """Create an artifact where pods store it, in a folder named by its identity."""
    made = text(store / title, title, *made_from)
    return Text.from_directory((store / title).rename(store / made.key))


def test_each_is_noted_by_the_title_of_its_run_after_what_it_was_made_of(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flyte passes the artifacts in any order, and two sets of rows are two stages with the same title."""
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e1")
    ours, theirs = text(tmp_path / "a", "rows"), text(tmp_path / "b", "rows")
    model = text(tmp_path / "c", "sft", ours, theirs)
    note_used([text(tmp_path / "d", "publish", model), model, theirs, ours])
    found = noted()
    assert [run.title for run in found] == ["rows", "rows", "sft", "publish"]
    assert all(run.cached for run in found) and len({(run.output or {})["digest"] for run in found}) == 4


def test_a_pod_notes_the_stages_before_its_own_and_nothing_of_earlier_executions(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e2")
    before = stored(tmp_path, "pretrain-of-yesterday")
    rows = stored(tmp_path, "rows-chat", stored(tmp_path, "corpus", stored(tmp_path, "unrelated")))
    model = stored(tmp_path, "sft", rows, before)
    upstream = {"dpo": ["sft"], "sft": ["rows-chat"], "rows-chat": ["corpus"]}
    note_upstream([model, before], Options(title="dpo", upstream=upstream))
    found = noted()
    assert [run.title for run in found] == ["corpus", "rows-chat", "sft"]
    assert all(run.cached and not run.pod for run in found)
    assert found[-1].inputs == read_manifest(tmp_path / model.key).parents


def test_what_a_night_continues_from_is_not_of_the_night_though_it_has_the_title_of_one_of_its_stages(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e5")
    yesterday = text(tmp_path / "yesterday", "pretrain")
    (tmp_path / "yesterday").rename(tmp_path / yesterday.key)
    tonight = stored(tmp_path, "pretrain", stored(tmp_path, "compact-1"), yesterday)
    note_upstream([tonight], Options(title="convert", upstream={"convert": ["pretrain"], "pretrain": ["compact-1"]}))
    assert [run.title for run in noted()] == ["compact-1", "pretrain"]


def test_what_is_noted_twice_is_one_record(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e4")
    model = stored(tmp_path, "sft")
    note_used([model])
    note_upstream([model], Options(title="dpo", upstream={"dpo": ["sft"]}))
    assert [run.title for run in noted()] == ["sft"]


def test_an_input_that_is_gone_is_left_to_the_stage(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e3")
    model = stored(tmp_path, "sft")
    (tmp_path / model.key / "manifest.json").unlink()
    note_upstream([model], Options(title="dpo", upstream={"dpo": ["sft"]}))
    assert not noted()
