"""`python -m tests.benchmarks.known [--documents 1000000 5000000]`

How an increment remembers its known text (tasks/data/changes.py): the time to read that many known documents into
SQLite and to compare them with a source that has 10,000 more, the largest memory, and the size of the file. Each number
of documents has a process of its own. The documents are names and ids only, as the engine reads them from Parquet; ids
come in no order, as digests do. Target: memory that does not grow.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from blake3 import blake3

from tasks.data.changes import Known
from tests.benchmarks.harness import report

NEW = 10_000


def documents(number: int) -> Iterator[tuple[int, str, str]]:
    """(place, name, id) of each."""
    for place in range(number):
        yield place, f"web/{place // 20_000:05}.jsonl:{place % 20_000}", blake3(place.to_bytes(8)).hexdigest()


def measure(number: int, folder: Path, results: Connection) -> None:
    known = Known(folder / "tables.sqlite")
    started = time.perf_counter()
    known.tables.execute("BEGIN")
    for _, name, document_id in documents(number):
        known.add_document(name, document_id, "train")
    known.tables.execute("COMMIT")
    added = time.perf_counter()
    changes = known.compare(documents(number + NEW))
    assert sum(1 for _ in known.new()) == NEW and not changes.gone
    compared = time.perf_counter()
    used = resource.getrusage(resource.RUSAGE_SELF)
    results.send(
        {
            "add_s": added - started,
            "compare_s": compared - added,
            "cpu_s": used.ru_utime + used.ru_stime,
            "memory_mb": used.ru_maxrss * 1024 / 1e6,
            "disk_mb": (folder / "tables.sqlite").stat().st_size / 1e6,
        }
    )


def measured(number: int) -> dict[str, float]:
    spawned = multiprocessing.get_context("spawn")
    receiver, sender = spawned.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        process = spawned.Process(target=measure, args=(number, Path(folder), sender))
        process.start()
        sender.close()
        found: dict[str, float] = receiver.recv()
        process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000_000, 5_000_000])
    rows: list[tuple[str, str]] = []
    figures: dict[str, float] = {}
    for number in parser.parse_args().documents:
        found = measured(number)
        rows.append((f"{number:,} documents", ", ".join(f"{name} {value:.0f}" for name, value in found.items())))
        print(*rows[-1], flush=True)
        figures |= {f"{name}_{number}": value for name, value in found.items()}
    report("known", rows, figures)


if __name__ == "__main__":
    main()
