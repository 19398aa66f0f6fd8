"""The corpus stage with several processes: the corpus does not depend on their number, on kills, or on other jobs."""

import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baton.infra.storage.buckets import StorageError
from baton.tasks.core.job import Job, StageError
from baton.tasks.data.corpus import SCANS, work
from baton.tasks.data.documents import read_documents
from baton.tasks.data.rounds import Ended, Report, wait_for, workers
from baton.tasks.data.spec import CorpusSpec
from tests.data.by_hand import digest, facts, new_job, run, start

ROOT = Path(__file__).parents[2]
FILES = 12
LINES = 150


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """JSONL files with duplicates in the same file and in others."""
    folder = tmp_path / "source"
    folder.mkdir()
    draw = random.Random(0)
    for number in range(FILES):
        texts = [f"text {draw.randrange(FILES * LINES)} {'of some words ' * 8}" for _ in range(LINES)]
        (folder / f"{number:02}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def job_of(folder: Path, source: Path, workers: int = 1, **more: Any) -> Job:
    spec = {
        "sources": {
            "a": {"kind": "jsonl", "path": str(source), **more},
            "b": {"kind": "files", "path": str(ROOT / "tasks" / "data")},
        },
        "curate": [{"pii": {}}],
        "partitions": {"size_mb": 0.05, "concurrency": workers},
        "held_out": 0.3,
    }
    return new_job(folder, "corpus", spec)


def made(job: Job) -> str:
    work(job)
    return digest(job.output)


def test_the_corpus_does_not_depend_on_the_number_of_workers(source: Path, home: Path, tmp_path: Path) -> None:
    one, *others = (job_of(tmp_path / f"of-{number}", source, number) for number in (1, 3, 7))
    expected = made(one)
    for job in others:
        (home / "partitions").rename(tmp_path / f"{job.directory.name}-kept")
        assert made(job) == expected
        assert facts(job.output) == facts(one.output)
    texts = {item.text for split in ("train", "held_out") for item in read_documents(one.output, split)}
    found = facts(one.output)
    assert len(texts) == found["documents"] + found["held_out_documents"]
    assert found["duplicates"] > 100


def scans(folder: Path) -> dict[str, float]:
    """Return the finished partitions and the times when they were written."""
    return {path.parent.name: path.stat().st_mtime for path in folder.glob("*.scan/manifest.json")}


def test_a_killed_engine_goes_on_with_what_is_missing(source: Path, home: Path, tmp_path: Path) -> None:
    expected = made(job_of(tmp_path / "whole", source))
    (home / "partitions").rename(tmp_path / "kept")
    job = job_of(tmp_path / "killed", source, 2)
    process = start(job)
    while len(before := scans(job.directory / SCANS)) < 4:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert before.items() <= scans(job.directory / SCANS).items()
    assert digest(run(job)) == expected


def folders(job: Job) -> int:
    """Count the existing results of items. The engine removes them at its end."""
    try:
        return len([*(job.directory / SCANS).glob("*.scan"), *job.work.glob("*.rounds/*")])
    except FileNotFoundError:  # removed during the listing
        return 0


@pytest.mark.long
def test_twenty_kills_change_nothing(source: Path, home: Path, tmp_path: Path) -> None:
    """The engine is killed repeatedly, at a random moment after its next results, in all rounds."""
    expected = made(job_of(tmp_path / "whole", source))
    draw, kills, number = random.Random(1), 0, 0
    while kills < 20:
        (home / "partitions").rename(tmp_path / f"kept-{number}")
        job, number = job_of(tmp_path / f"killed-{number}", source, 2), number + 1
        while not ended(job, draw):
            kills += 1
        assert digest(job.output) == expected


def ended(job: Job, draw: random.Random) -> bool:
    """Start the engine, and kill it if it has not ended before."""
    process, enough = start(job), folders(job) + draw.randint(1, 3)
    while process.poll() is None and folders(job) < enough:
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 0.1))
    process.kill()
    output, _ = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), output
    return process.returncode == 0


def test_a_second_corpus_at_the_same_time_is_the_same(source: Path, home: Path, tmp_path: Path) -> None:
    jobs = [job_of(tmp_path / name, source, 2) for name in ("one", "two")]
    processes = [start(job) for job in jobs]
    for process in processes:
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
    assert digest(jobs[0].output) == digest(jobs[1].output)


def test_only_a_changed_partition_is_read_again(source: Path, home: Path, tmp_path: Path) -> None:
    made(job_of(tmp_path / "one", source))
    before = scans(home / "partitions")
    assert len(before) > 3
    with (source / "05.jsonl").open("a") as file:
        file.write(json.dumps({"text": "one more"}) + "\n")
    changed = made(job_of(tmp_path / "two", source))
    assert len(scans(home / "partitions").keys() - before.keys()) == 1
    (home / "partitions").rename(tmp_path / "kept")
    assert made(job_of(tmp_path / "anew", source)) == changed


def test_a_damaged_kept_partition_is_read_again(source: Path, home: Path, tmp_path: Path) -> None:
    expected = made(job_of(tmp_path / "one", source))
    for path in (home / "partitions").glob("*.scan/keys-00000.npy"):
        path.write_bytes(b"damaged")
    assert made(job_of(tmp_path / "two", source)) == expected


def test_what_no_corpus_has_used_for_long_is_not_kept(source: Path, home: Path, tmp_path: Path) -> None:
    made(job_of(tmp_path / "one", source))
    unused = home / "partitions" / "0.scan"
    shutil.copytree(next((home / "partitions").iterdir()), unused)
    before = scans(home / "partitions")
    os.utime(unused / "manifest.json", (0, 0))
    made(job_of(tmp_path / "two", source))
    assert scans(home / "partitions").keys() == before.keys() - {"0.scan"}


def test_a_broken_file_is_skipped_and_counted_or_stops_the_engine(source: Path, home: Path, tmp_path: Path) -> None:
    with (source / "03.jsonl").open("a") as file:
        file.write('{"text": "cut o')
    job = job_of(tmp_path / "skip", source, on_broken="skip")
    work(job)
    assert (facts(job.output)["broken"], facts(job.output)["broken_records"]) == (1, 1)
    assert "03.jsonl, line 151" in (job.output / "record" / "broken.json").read_text()
    assert "03.jsonl, line 151" in job.notices.read_text()
    with pytest.raises(StageError, match=r"03\.jsonl, line 151"):
        work(job_of(tmp_path / "stop", source, 2))


def pid(item: Path, report: Report) -> None:
    time.sleep(0.01)
    item.write_text(str(os.getpid()))


@pytest.mark.parametrize(("number", "others"), [(None, 0), (1, 0), (2, 1), (3, 2)])
def test_short_work_is_done_by_this_process_unless_a_number_is_given(
    number: int | None, others: int, tmp_path: Path
) -> None:
    items = [tmp_path / str(name) for name in range(12)]
    with workers(number) as pool:
        pool.run(pid, items, [1] * len(items), lambda progress: None)
    pids = {item.read_text() for item in items}
    assert len(pids - {str(os.getpid())}) == others


def test_the_content_of_all_partitions_is_counted(source: Path, home: Path, tmp_path: Path) -> None:
    job = job_of(tmp_path / "job", source, 3)
    run(job)
    scan, *_ = json.loads((job.record / "speeds.json").read_text())
    documents = FILES * LINES + len([*(ROOT / "tasks" / "data").rglob("*.py")])
    assert scan["documents"] == documents


def refuse(item: str, report: Report) -> None:
    if multiprocessing.parent_process():
        raise StorageError(item, curable=True)


def test_an_error_of_a_worker_is_the_round_s() -> None:
    with workers(2) as pool, pytest.raises(StorageError) as error:
        pool.run(refuse, ["no", "no"], [1, 1], lambda progress: None)
    assert (error.value.message, error.value.curable) == ("no", True)


def write_array(item: str, report: Report) -> None:
    np.ones(100_000).tofile(item)


@pytest.mark.parametrize("number", [1, 2])
def test_a_full_disk_is_named_whatever_wrote(number: int) -> None:
    with workers(number) as pool, pytest.raises(OSError, match="No space left on device") as error:
        pool.run(write_array, ["/dev/full", "/dev/full"], [1, 1], lambda progress: None)
    assert error.value.errno == errno.ENOSPC


def test_a_file_that_changes_while_it_is_read_is_named(source: Path, home: Path, tmp_path: Path) -> None:
    (tmp_path / "watching.py").write_text(
        f"def keep(document):\n    open('{source}/00.jsonl', 'a').write(' ')\n    return True\n"
    )
    spec = CorpusSpec.model_validate(
        {
            "source": {"kind": "jsonl", "path": f"{source}/00.jsonl"},
            "curate": [{"function": f"{tmp_path}/watching.py:keep"}],
        }
    )
    with pytest.raises(StageError, match=r"00\.jsonl: changed while it was read"):
        work(new_job(tmp_path / "job", "corpus", spec.pinned().model_dump(mode="json")))
    assert not (home / "partitions").exists()


def die(item: int, report: Report) -> None:
    if multiprocessing.parent_process():
        os._exit(9)


def test_a_worker_that_dies_is_an_error_with_a_way_out() -> None:
    with workers(2) as pool, pytest.raises(StageError, match=r"out of memory.*concurrency: 1"):
        pool.run(die, [1, 2], [1, 1], lambda progress: None)


def test_a_machine_does_not_wait_for_what_the_first_has_removed(tmp_path: Path) -> None:
    (tmp_path / "result.json").touch()
    with pytest.raises(Ended):
        wait_for([tmp_path / "removed"], lambda _: None, tmp_path / "result.json")
