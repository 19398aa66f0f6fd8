"""`baton gc` on a recorded home: what goes, what stays, and what happens if something else is at work."""

import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from baton.infra.lineage.files import look
from baton.infra.process.removal_lock import without_removal
from baton.infra.storage import durable
from baton.infra.tracking.execution import begin_execution, close_execution, end_execution, note_used
from baton.infra.tracking.note import main as note
from baton.infra.tracking.record import tracked
from baton.tasks.cache_hit import is_missing
from baton.tasks.core import removed
from baton.tasks.core.manifest import MANIFEST, read_manifest, write_manifest
from baton.tasks.core.removed import was_removed
from baton.tasks.models.named import name_model
from baton.workflows.gc.command import main
from baton.workflows.gc.found import Item, freed
from tests.lineage.conftest import recorded
from tests.lineage.recorded import Stored
from tests.tracking.conftest import close, empty_store

__all__ = ["empty_store", "recorded"]

ANY_AGE = ("--older-than", "0h")
INTERMEDIATE = {"corpus-0.003", "tokenizer-0.003", "shards-0.003", "pretrain-0.003", "pretrain-0.001"}


@pytest.fixture
def home(recorded: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the recorded home: two runs, and a registered model with a champion."""
    copy = tmp_path / "copy"
    shutil.copytree(recorded.home, copy)
    monkeypatch.setenv("BATON_HOME", str(copy))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("BATON_EXECUTION", raising=False)
    yield copy
    close()


def gc(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code, result.output
    return result.output


def gone(home: Path) -> set[str]:
    """Return the names of the jobs whose artifacts were removed."""
    outputs = [path.parent for path in (home / "jobs").glob(f"*/output/{MANIFEST}")]
    assert all(was_removed(str(output)) == is_missing(str(output)) for output in outputs)
    return {output.parent.name for output in outputs if was_removed(str(output))}


def output_of(home: Path, job: str) -> Path:
    return home / "jobs" / job / "output"


def test_by_default_nothing_is_changed(home: Path) -> None:
    before = sorted(path for path in home.rglob("*") if path.name != "removal.lock")
    shown = gc(*ANY_AGE)
    assert "jobs/pretrain-0.003/output" in shown and "Nothing was changed" in shown
    assert sorted(path for path in home.rglob("*") if path.name != "removal.lock") == before


def test_what_was_used_lately_stays(home: Path) -> None:
    assert "There is nothing to remove" in gc()


def test_files_go_from_which_something_was_made_and_that_nothing_needs(home: Path) -> None:
    assert f"removed {len(INTERMEDIATE) + 1} of {len(INTERMEDIATE) + 1}" in gc(
        "--delete", *ANY_AGE
    )  # a failed job's too
    assert gone(home) == INTERMEDIATE
    assert "There is nothing to remove" in gc(*ANY_AGE)


def test_a_removed_artifact_keeps_its_manifest_and_its_record(home: Path, recorded: Stored) -> None:
    before = read_manifest(output_of(home, "pretrain-0.003"))
    gc("--delete", *ANY_AGE)
    assert read_manifest(output_of(home, "pretrain-0.003")) == before
    found = look(str(home / "jobs" / "pretrain-0.003"), recorded.digests["pretrain"])
    assert found.state == "removed" and found.records and found.files[0]["name"] == "weights.bin"


def test_a_champion_stays_whatever_is_asked(home: Path) -> None:
    gc("--delete", *ANY_AGE, "--kind", "hf_model")
    assert gone(home) == {"convert-0.001"}  # the others are a champion and an earlier one


def test_a_model_with_a_path_by_name_stays_whatever_is_asked(home: Path) -> None:
    name_model("mine", output_of(home, "convert-0.001"))
    gc("--delete", *ANY_AGE, "--kind", "hf_model")
    assert not gone(home)


def test_of_one_run_only_what_it_made_goes(home: Path, recorded: Stored) -> None:
    gc("--delete", "--run", recorded.second, "--kind", "megatron_checkpoint")
    assert gone(home) == {"pretrain-0.001"}
    assert "no run" in gc("--run", "20200101", code=1)
    assert "has no such files" in gc("--kind", "hf_models", code=1)
    assert "not an age" in gc("--older-than", "soon", code=2)


def test_what_a_run_with_a_note_has_made_stays(home: Path, recorded: Stored) -> None:
    CliRunner().invoke(note, [recorded.first, "for the paper"])
    assert "has the note 'for the paper'" in gc(*ANY_AGE)
    gc("--delete", *ANY_AGE)
    assert gone(home) == {"pretrain-0.001"}


def test_the_measurements_of_a_recipe_s_newest_run_stay(home: Path) -> None:
    gc("--delete", *ANY_AGE, "--kind", "eval_report")
    assert gone(home) == {"evaluate-base-0.001"}  # of a run that failed


def test_what_a_running_execution_relies_on_stays(home: Path, recorded: Stored) -> None:
    begin_execution("another recipe", {})
    note_used([recorded.digests["shards"]])
    gc("--delete", *ANY_AGE)
    assert gone(home) == INTERMEDIATE - {"shards-0.003"}
    end_execution()
    gc("--delete", *ANY_AGE)
    assert gone(home) == INTERMEDIATE


def test_what_a_running_execution_makes_stays_with_its_checkpoints(home: Path, recorded: Stored) -> None:
    job = home / "jobs" / "sft-1"
    (job / "work" / "step-3").mkdir(parents=True)
    (job / "work" / "step-3" / "weights.bin").write_text("weights")
    begin_execution("another recipe", {})
    with tracked("sft", job, spec={}, inputs={"model": recorded.digests["pretrain"]}):
        gc("--delete", *ANY_AGE)
        assert (job / "work" / "step-3" / "weights.bin").exists() and "pretrain-0.003" not in gone(home)
    end_execution()
    close_execution()
    gc("--delete", "--kind", "unfinished", *ANY_AGE)
    assert not (job / "work").exists()


def test_a_job_whose_engine_works_without_its_launcher_stays(home: Path) -> None:
    with (home / "jobs" / "pretrain-0.003" / "log.txt").open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        assert "a process is working on it" in gc("--delete", *ANY_AGE, code=1)
    assert gone(home) == INTERMEDIATE - {"pretrain-0.003"}


def test_checkpoints_of_finished_jobs_and_what_killed_processes_left_go_by_default(home: Path) -> None:
    job = output_of(home, "sft-0.003").parent
    digest = read_manifest(job / "output").digest
    (job / "result.json").write_text(json.dumps({"digest": digest}))
    (job / "work" / "step-3").mkdir(parents=True)
    (job / "work" / "step-3" / "state").write_text("state")
    left = home / "artifacts" / "abc.123.partial"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    gc("--delete")
    assert not (job / "work").exists() and not left.exists() and (job / "log.txt").exists()


def test_a_removal_waits_for_decisions_and_a_decision_for_a_removal(home: Path) -> None:
    code = "import sys; from baton.infra.process.removal_lock import removal\nwith removal(): print('removing', flush=True); input()"
    words = [sys.executable, "-c", code]
    with without_removal(), without_removal():  # any number of runs may decide at the same time
        other = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert other.stdin and other.stdout and other.stderr
        assert "waiting" in other.stderr.readline()
    assert other.stdout.readline() == "removing\n"
    ended = threading.Event()

    def end() -> None:
        ended.set()
        other.communicate("\n")

    timer = threading.Timer(0.3, end)
    timer.start()
    with without_removal():
        assert ended.is_set()
    timer.join()


def _killed_after(files: int) -> None:
    """Remove what `baton gc --delete` removes, and be killed after some files."""
    unlink, left = Path.unlink, [files]

    def dying(path: Path, missing_ok: bool = False) -> None:
        if path.name == "weights.bin":
            left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        unlink(path, missing_ok)

    Path.unlink = dying  # type: ignore[method-assign, assignment]
    main(["--delete", *ANY_AGE])


@pytest.mark.parametrize("files", [0, 1, 3])
def test_after_a_kill_no_artifact_looks_damaged_and_the_next_one_continues(home: Path, files: int) -> None:
    for job in INTERMEDIATE:  # artifacts of several files
        _add_file(output_of(home, job))
    process = multiprocessing.get_context("fork").Process(target=_killed_after, args=(files,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    for output in (path.parent for path in (home / "jobs").glob(f"*/output/{MANIFEST}")):
        assert was_removed(str(output)) or not is_missing(str(output))
    gc("--delete", *ANY_AGE)
    assert {*gone(home)} >= INTERMEDIATE
    assert not [*home.glob("jobs/pretrain*/output/weights.bin"), *home.glob("jobs/pretrain*/output/more.bin")]


def _add_file(output: Path) -> None:
    """Add a file to an artifact whose digest is recorded: as a damaged manifest would be, it is not verified here."""
    manifest = json.loads((output / MANIFEST).read_text())
    (output / "more.bin").write_text("more")
    manifest["files"]["more.bin"] = {"size": 4, "blake3": ""}
    (output / MANIFEST).write_text(json.dumps(manifest))


def test_two_at_the_same_time_do_no_harm(home: Path) -> None:
    words = [sys.executable, "-m", "baton", "gc", "--delete", *ANY_AGE]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sorted("removed 6 of 6" in output for output in outputs) == [False, True]
    assert gone(home) == INTERMEDIATE


def test_no_file_outside_of_an_artifact_goes_for_a_manifest_that_was_changed(home: Path, tmp_path: Path) -> None:
    output = output_of(home, "pretrain-0.003")
    outside = [tmp_path / "a", output.parent / "log.txt", output / MANIFEST]
    outside[0].write_text("a")
    (output / "link").symlink_to(tmp_path)
    manifest = json.loads((output / MANIFEST).read_text())
    for name in (str(outside[0]), "../log.txt", "x/../../log.txt", "link/a", MANIFEST, "..", "."):
        manifest["files"][name] = {"size": 1, "blake3": ""}
    (output / MANIFEST).write_text(json.dumps(manifest))
    gc("--delete", *ANY_AGE)
    assert all(path.exists() for path in outside) and not (output / "weights.bin").exists()


def test_a_file_with_two_names_is_freed_with_the_second(tmp_path: Path) -> None:
    for name in ("model", "published"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "weights").write_bytes(bytes(100_000))
    os.link(tmp_path / "model" / "weights", tmp_path / "published" / "weights")
    items = [Item("downloads", tmp_path / name, 0.0) for name in ("model", "published")]
    assert freed(items[:1]) == 0
    assert freed(items) >= 100_000


def test_a_full_disk_has_room_for_the_mark_after_the_first_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, left = durable.write_json, [1]

    def full(path: Path, value: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, value)

    monkeypatch.setattr(removed, "write_json", full)
    gc("--delete", *ANY_AGE)
    assert gone(home) == INTERMEDIATE


def test_nothing_goes_while_the_registry_does_not_answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert "Nothing is removed" in gc("--delete", *ANY_AGE, code=1)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (home / "mlflow.db").rename(home / "being-restored.db")
    assert "Nothing is removed" in gc("--delete", *ANY_AGE, code=1)
    assert not gone(home)


def test_a_home_without_any_run_has_nothing_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "new"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert "There is nothing to remove" in gc()


def test_the_base_of_an_adapter_stays_with_it(home: Path) -> None:
    jobs: dict[str | None, str] = {}
    for name, base in (("base", None), ("adapter", "base")):
        output = output_of(home, name)
        output.mkdir(parents=True)
        (output / "weights.bin").write_text(name)
        fields = {"base": {"digest": jobs[base], "place": ""}} if base else {}
        jobs[name] = write_manifest(output, "hf_model", fields).digest
        os.utime(output.parent, (0, 0) if name == "base" else None)
        os.utime(output / MANIFEST, (0, 0) if name == "base" else None)
    gc("--delete", "--kind", "hf_model", "--older-than", "1h")
    assert "base" not in gone(home)
    gc("--delete", "--kind", "hf_model", *ANY_AGE)
    assert {"base", "adapter"} <= gone(home)
