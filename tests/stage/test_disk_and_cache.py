"""After a full disk or with a damaged cache, `pyflyte run` prints a message without a traceback, and the same
command continues the run."""

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flytekit.core.local_cache import LocalTaskCache
from flytekit.models.literals import Literal, LiteralMap, Primitive, Scalar

import baton.infra.flyte.cache
from tests.source import ROOT

PYFLYTE = Path(sys.executable).with_name("pyflyte")
WORDS = ["run", "tests/stage/chain.py", "chain", "--make_spec", '{"text": "ab", "times": 2}', "--count_spec", "{}"]


def run(home: Path, times: int = 2, **more: str) -> subprocess.CompletedProcess[str]:
    words = [word.replace("2}", f"{times}}}") for word in WORDS]
    environment = os.environ | {"BATON_HOME": str(home), "TOY_STARTS": str(home.parent / "starts"), "COLUMNS": "500"}
    environment.pop("BATON_EXECUTION", None)
    return subprocess.run(
        [PYFLYTE, *words], cwd=ROOT, env=environment | more, check=False, capture_output=True, text=True
    )


def started(home: Path) -> list[str]:
    return (home.parent / "starts").read_text().split()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a finished chain."""
    home = tmp_path_factory.mktemp("finished") / "home"
    home.mkdir()
    ended = run(home)
    assert ended.returncode == 0, ended.stderr
    return home


@pytest.fixture
def home(finished: Path) -> Iterator[Path]:
    """A fresh copy of the same home."""
    kept = finished.with_name("kept")
    shutil.copytree(finished / "flyte-cache", kept)
    (finished.parent / "starts").write_text("")
    yield finished
    for left in finished.glob("flyte-cache*"):
        shutil.rmtree(left)
    kept.rename(finished / "flyte-cache")


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(50_000))


def malformed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = random.Random(1).randbytes(len(content) - 4096)
    path.write_bytes(content)


DAMAGE = {"garbage": garbage, "truncated": lambda path: os.truncate(path, 5000), "malformed": malformed}


def damage(folder: Path, how: str) -> None:
    for journal in folder.glob("cache.db-*"):
        journal.unlink()
    DAMAGE[how](folder / "cache.db")


ENTRY = ("task", "1", LiteralMap({}), ())
ENTRY_VALUE = Literal(scalar=Scalar(primitive=Primitive(integer=1)))


@pytest.fixture
def flyte_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Flyte's cache in this process, in a separate folder with one entry."""
    monkeypatch.setattr("flytekit.core.local_cache.CACHE_LOCATION", str(tmp_path / "cache"))
    monkeypatch.setattr(LocalTaskCache, "_initialized", False)
    baton.infra.flyte.cache.put(*ENTRY, LiteralMap({"made": ENTRY_VALUE}))
    LocalTaskCache._cache.close()
    monkeypatch.setattr(LocalTaskCache, "_initialized", False)
    return tmp_path / "cache"


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_cache_is_named(flyte_cache: Path, how: str) -> None:
    damage(flyte_cache, how)
    with pytest.raises(baton.infra.flyte.cache.CacheDamaged, match="Flyte's cache cannot be read"):
        baton.infra.flyte.cache.get(*ENTRY)


@pytest.mark.parametrize("entry", [b"", os.urandom(300), b"\x80\x04garbage"], ids=["empty", "bytes", "pickle"])
def test_an_entry_that_is_garbage_counts_as_not_cached(flyte_cache: Path, entry: bytes) -> None:
    assert baton.infra.flyte.cache.get(*ENTRY) is not None
    mode = 4 if entry.startswith(b"\x80") else 1  # the modes of diskcache for pickled and raw values
    with sqlite3.connect(flyte_cache / "cache.db") as cache:
        cache.execute("UPDATE Cache SET value = ?, mode = ?, filename = NULL", (entry, mode))
    assert baton.infra.flyte.cache.get(*ENTRY) is None


@pytest.mark.parametrize("how", ["garbage", *(pytest.param(how, marks=pytest.mark.long) for how in list(DAMAGE)[1:])])
def test_moving_a_damaged_cache_aside_is_enough(home: Path, how: str) -> None:
    damage(home / "flyte-cache", how)
    ended = run(home)
    output = ended.stdout + ended.stderr
    assert ended.returncode == 1 and "Traceback" not in output
    assert "cache.db: Flyte's cache cannot be read" in output
    (fix,) = [line.strip("│ ") for line in output.splitlines() if "  mkdir " in line]
    subprocess.run(fix, shell=True, check=True)
    assert run(home).returncode == 0
    assert started(home) == []  # nothing was recomputed


@pytest.mark.long
@pytest.mark.parametrize("entry", [b"", os.urandom(300), b"\x80\x04garbage"], ids=["empty", "bytes", "pickle"])
def test_a_run_goes_on_where_an_entry_is_garbage(home: Path, entry: bytes) -> None:
    mode = 4 if entry.startswith(b"\x80") else 1  # the modes of diskcache for pickled and raw values
    with sqlite3.connect(home / "flyte-cache" / "cache.db") as cache:
        cache.execute("UPDATE Cache SET value = ?, mode = ?, filename = NULL", (entry, mode))
    ended = run(home)
    assert ended.returncode == 0, ended.stderr
    assert started(home) == []


def test_bits_that_flip_in_an_entry_change_no_result(home: Path) -> None:
    with sqlite3.connect(home / "flyte-cache" / "cache.db") as cache:
        for key, value in cache.execute("SELECT rowid, value FROM Cache").fetchall():
            changed = bytearray(value)
            changed[random.Random(key).randrange(len(changed))] ^= 0x20
            cache.execute("UPDATE Cache SET value = ? WHERE rowid = ?", (bytes(changed), key))
    ended = run(home)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads(next(home.glob("jobs/count-*/output/count.json")).read_text()) == 2


# A full disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A separate disk of 3 MB, mounted in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, leave: int) -> Path:
    filler = disk / "filler"
    with filler.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, shutil.disk_usage(disk).free - leave)
    return filler


@pytest.mark.long
@pytest.mark.parametrize(
    "leave", [pytest.param(0, marks=pytest.mark.long), 24, 300], ids=lambda leave: f"{leave} kB left"
)
def test_a_disk_that_is_full_at_any_moment_is_a_message_and_the_run_goes_on_later(disk: Path, leave: int) -> None:
    home = disk / "home"
    home.mkdir()
    (home.parent / "starts").write_text("")
    filler = fill(disk, leave << 10)
    ended = run(home, times=200_000)  # 400 kB
    output = ended.stdout + ended.stderr
    assert ended.returncode == 1, output
    assert "Traceback" not in output and len(output.splitlines()) < 25, output
    assert "full" in output or "no space left" in output.lower()
    filler.unlink()
    again = run(home, times=200_000)
    assert again.returncode == 0, again.stdout + again.stderr
    assert json.loads(next(disk.glob("home/jobs/count-*/output/count.json")).read_text()) == 200_000


@pytest.mark.long
def test_a_full_disk_of_the_job_folder_alone_is_a_message(disk: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (disk / "jobs").mkdir()
    home.mkdir()
    (home / "jobs").symlink_to(disk / "jobs")
    fill(disk, 24 << 10)
    ended = run(home, times=200_000)
    output = ended.stdout + ended.stderr
    assert ended.returncode == 1 and "Traceback" not in output
    assert "full" in output or "no space left" in output.lower()
    assert list(home.glob("executions/*/make/run.json"))  # the record is on another disk


def test_a_full_disk_of_the_store_alone_does_not_stop_a_run(disk: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    fill(disk, 100 << 10)
    ended = run(home, MLFLOW_TRACKING_URI=f"sqlite:///{disk / 'mlflow.db'}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr and len(ended.stderr.splitlines()) < 10, ended.stderr
    assert "full" in ended.stderr and "its records are kept in" in ended.stderr
