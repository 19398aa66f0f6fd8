"""Several machines that share a job's folder process a corpus together."""

import json
import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.core.job import open_job
from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.corpus import work
from baton.tasks.data.rounds import dealt
from baton.tasks.data.shards import work as tokenize
from tests.data.by_hand import new_job


@given(st.lists(st.integers(1, 10**9), max_size=60), st.integers(1, 7))
def test_each_item_is_dealt_to_one_machine_and_no_share_is_larger_by_more_than_an_item(
    sizes: list[int], machines: int
) -> None:
    machine = dealt(sizes, machines)
    shares = [sum(size for size, rank in zip(sizes, machine, strict=True) if rank == one) for one in range(machines)]
    assert sum(shares) == sum(sizes)
    assert max(shares) - min(shares) <= max(sizes, default=0)


def test_three_machines_make_the_corpus_of_one(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(40):
        lines = (json.dumps({"text": f"{row % 170} said {row % 13} times"}) for row in range(number, number + 60))
        (texts / f"{number:02}.jsonl").write_text("\n".join(lines))
    source = {"kind": "jsonl", "path": str(texts)}
    alone = new_job(tmp_path / "alone", "corpus", {"source": source, "partitions": {"size_mb": 0.004}})
    work(alone)
    spec = {"source": source, "partitions": {"size_mb": 0.004, "machines": 3, "concurrency": 1}}
    together = new_job(tmp_path / "together", "corpus", spec)

    logs = run_on_three(together.directory, tmp_path)
    read = [int(log.split("documents", 1)[0].split()[-1].replace(",", "")) for log in logs]
    assert all(0 < documents < 40 * 60 for documents in read)  # each read some of the documents
    assert read_manifest(together.output).digest == read_manifest(alone.output).digest
    assert not (together.directory / "work").exists()


def test_three_machines_make_the_shards_of_one(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    alone, together = (
        new_job(tmp_path / name, "shards", {"machines": 3, "concurrency": 1}, corpus=corpus, tokenizer=tokenizer)
        for name in ("alone", "together")
    )
    tokenize(alone)
    logs = run_on_three(together.directory, tmp_path)
    assert all("encode: " in log for log in logs)
    assert ["join: " in log for log in logs] == [True, False, False]
    assert read_manifest(together.output).digest == read_manifest(alone.output).digest
    assert not (together.directory / "tokens").exists()


def run_on_three(job: Path, homes: Path) -> list[str]:
    """Run the engine on three machines; returns the logs."""
    engines = [start(job, homes / f"home-{rank}", rank) for rank in range(3)]
    try:
        logs = [engine.communicate(timeout=100)[0] for engine in engines]
    finally:
        for engine in engines:
            engine.kill()
    assert [engine.returncode for engine in engines] == [0, 0, 0], logs
    return logs


def start(job: Path, home: Path, rank: int) -> subprocess.Popen[str]:
    """Start the engine on one of three machines."""
    place = {"NODE_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "BATON_HOME": str(home)}
    return subprocess.Popen(
        [sys.executable, "-m", f"baton.tasks.data.{open_job(job).stage}", str(job)],
        env=os.environ | place,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
