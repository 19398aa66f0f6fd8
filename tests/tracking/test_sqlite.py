"""The file of the SQLite store: created once, never overwritten, and with a named error if it is missing or damaged."""

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from baton.infra.tracking.execution import begin_execution, close_execution, flush
from baton.infra.tracking.sqlite import make_tables
from baton.infra.tracking.sqlite_file import StoreDamaged, StoreMissing
from baton.infra.tracking.store import check_reachable, tracking_uri
from baton.tasks.core.job import StageError
from baton.tasks.publish.aliases import version_at, versions
from baton.tasks.publish.registry import Publication, ask, register
from tests.tracking.conftest import runs

WAIT_S = 60.0
NAME = "coder"


def publish(number: int) -> None:
    where = Path(os.environ["BATON_HOME"]) / f"model-{number}"
    where.mkdir()
    register(Publication(NAME, "champion", where, f"{number}" * 64, "", {}), waiting=lambda waited: None)


@pytest.mark.long
def test_a_reader_never_makes_a_store_while_the_file_is_moved_away_and_back(home: Path) -> None:
    """This happens during a restore or a remount, while a service keeps looking up the champion."""
    for number in (1, 2):
        publish(number)
    store, away = home / "mlflow.db", home / "away.db"
    found, refused, ended = [], [], threading.Event()

    def look() -> None:
        while not ended.is_set():
            try:
                found.append(version_at(NAME, "champion", patience_s=0))
            except StageError as error:
                refused.append(str(error))

    def process() -> None:
        program = "from tests.tracking.test_sqlite import look_for_long; look_for_long()"
        subprocess.run([sys.executable, "-c", program], check=True)

    readers = [threading.Thread(target=look) for _ in range(2)] + [threading.Thread(target=process)]
    for reader in readers:
        reader.start()
    for _ in range(60):
        store.rename(away)
        time.sleep(0.05)
        assert not store.exists(), "a reader has made a new store"
        os.link(away, store)  # fails if the file exists
        away.unlink()
        time.sleep(0.05)
    ended.set()
    for reader in readers:
        reader.join()
    assert refused and all("mlflow.db" in words for words in refused)
    assert {each.version for each in found if each} == {2} and None not in found
    assert [each.version for each in versions(NAME)] == [1, 2]


def look_for_long() -> None:
    """Look up the champion for ten seconds while the file is moved away and back. This runs in a separate process,
    which loads MLflow."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            found = version_at(NAME, "champion", patience_s=0)
            assert found and found.version == 2
        except StageError:
            pass


def test_a_reader_sees_the_store_that_was_restored(home: Path, tmp_path: Path) -> None:
    publish(1)
    shutil.copy(home / "mlflow.db", tmp_path / "backup.db")
    publish(2)
    assert len(versions(NAME)) == 2
    shutil.copy(tmp_path / "backup.db", tmp_path / "restored.db")
    (tmp_path / "restored.db").replace(home / "mlflow.db")
    assert len(versions(NAME)) == 1


def test_a_reader_says_at_once_that_there_was_never_a_store(home: Path) -> None:
    (home / "mlflow.db").unlink()
    with pytest.raises(StageError, match=r"mlflow\.db: there is no tracking store yet"):
        versions(NAME)
    assert not (home / "mlflow.db").exists()


def test_a_store_that_came_back_meanwhile_is_not_written_over(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(1)
    store, away = home / "mlflow.db", home / "away.db"
    store.rename(away)

    def returns(*words: object) -> None:  # called just before the new file gets its name
        if not store.exists():
            away.rename(store)

    monkeypatch.setattr("baton.infra.tracking.sqlite.sync", returns)
    make_tables(tracking_uri())
    assert [each.version for each in versions(NAME)] == [1]
    assert not list(home.glob("mlflow.db.new*"))


def make_in_a_process(uri: str, start: "multiprocessing.synchronize.Barrier") -> None:
    start.wait()
    make_tables(uri)
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as store:
        store.execute("INSERT INTO registered_models (name) VALUES (?)", (str(os.getpid()),))


@pytest.mark.long
def test_writers_that_start_at_once_share_one_store(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(4)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    writers = [context.Process(target=make_in_a_process, args=(uri, start)) for _ in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    with sqlite3.connect(tmp_path / "mlflow.db") as store:
        names = {name for (name,) in store.execute("SELECT name FROM registered_models")}
    assert names == {str(each.pid) for each in writers}


def test_a_run_does_not_begin_a_new_store_in_the_place_of_one_that_is_away(home: Path) -> None:
    begin_execution("one", {})
    flush(WAIT_S)
    close_execution()
    (home / "mlflow.db").rename(home / "away.db")
    with pytest.raises(StoreMissing, match=r"(?s)restore the file.*baton tracking sync --all"):
        begin_execution("two", {})
    assert not (home / "mlflow.db").exists()


def test_a_run_goes_on_while_its_store_is_away_and_delivers_to_it_later(home: Path) -> None:
    begin_execution("one", {})
    assert flush(WAIT_S)
    (home / "mlflow.db").rename(home / "away.db")
    close_execution()
    assert not (home / "mlflow.db").exists()
    (home / "away.db").rename(home / "mlflow.db")
    subprocess.run([sys.executable, "-m", "baton", "tracking", "sync"], check=True)
    assert runs("execution")[0].info.status == "FINISHED"


DAMAGE = {
    "garbage": lambda path: path.write_bytes(os.urandom(50_000)),
    "zero bytes": lambda path: path.write_bytes(b""),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "another program's": lambda path: (path.unlink(), sqlite3.connect(path).execute("CREATE TABLE t (x)")),
    "a newer MLflow's": lambda path: execute(path, "UPDATE alembic_version SET version_num = 'fedcba987654'"),
}


def execute(path: Path, words: str) -> None:
    with sqlite3.connect(path) as store:
        store.execute(words)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_store_is_named_with_the_way_out(home: Path, how: str) -> None:
    DAMAGE[how](home / "mlflow.db")
    with pytest.raises(StoreDamaged, match=r"mlflow\.db.*\n.*mv .*mlflow\.db.*\n.*sync --all"):
        check_reachable()
    with pytest.raises(StageError, match="sync --all"):
        versions(NAME)


def test_a_reader_leaves_the_schema_of_an_older_store_alone(home: Path) -> None:
    """MLflow would migrate the schema, and the version that wrote it could not open it afterwards."""
    execute(home / "mlflow.db", "UPDATE alembic_version SET version_num = '0584bdc529eb'")  # the schema of MLflow 2.22
    before = (home / "mlflow.db").read_bytes()
    with pytest.raises(StageError, match=r"older MLflow .*\n  cp .*\n  .*mlflow db upgrade sqlite:///"):
        versions(NAME)
    assert (home / "mlflow.db").read_bytes() == before


def test_an_out_of_date_schema_is_an_answer_and_is_not_asked_for_again(home: Path) -> None:
    """The schema is that of a database server; MLflow reports it as an internal error."""

    def attempt(client: object) -> None:
        raise MlflowException("Detected out-of-date database schema (found version 1, but expected 2).")

    with pytest.raises(StageError, match="refuses: Detected out-of-date database schema"):
        ask(attempt, patience_s=60)


COMMANDS = {
    "a run": ["tests.tracking.one_execution", "one", "JOB", "3"],
    "rollback": ["baton", "rollback", NAME, "--show"],
    "tracking": ["baton.infra.tracking", "sync"],
    "lineage": ["baton.infra.lineage", "--port", "0"],
}


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("how", ["garbage", "truncated"])
def test_every_command_names_a_damaged_store_without_a_traceback(home: Path, command: str, how: str) -> None:
    DAMAGE[how](home / "mlflow.db")
    words = [sys.executable, "-m", *COMMANDS[command]]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 1
    output = ended.stdout + ended.stderr
    assert "mlflow.db" in output and "sync --all" in output
    assert command == "a run" or "Traceback" not in output  # a plain script shows the error that a person gets


@pytest.mark.long
def test_sync_all_brings_everything_back_into_a_fresh_store(home: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        words = [sys.executable, "-m", "tests.tracking.one_execution", name, str(tmp_path / name), "20"]
        subprocess.run(words, check=True)
    before = {run.info.run_name for role in ("execution", "stage") for run in runs(role)}
    DAMAGE["truncated"](home / "mlflow.db")
    with pytest.raises(StoreDamaged) as damaged:
        check_reachable()
    fix = [line.strip() for line in str(damaged.value).splitlines() if line.startswith("  ")]
    assert len(fix) == 2
    for line in fix:  # as a person would type them
        subprocess.run(line, shell=True, check=True)
    assert {run.info.run_name for role in ("execution", "stage") for run in runs(role)} == before
    assert len(runs("execution")) == 2
    assert [run.info.status for run in runs("stage")] == ["FINISHED"] * 2
