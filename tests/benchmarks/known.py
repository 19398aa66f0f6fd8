"""`python -m tests.benchmarks.known [--documents 1000000 5000000 20000000] [--threads 1]`

The comparison of an increment with its known text (tasks/data/known_documents.py): a corpus with the given number of
documents and a source with 10,000 more, written beforehand as names and ids in Parquet; the ids have no order, like
digests. For each number of documents, a separate process measures the time, the CPU time and the peak memory. Target:
at most 1.5 GB of memory, and time that grows linearly with the number of documents.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from baton.tasks.core.job import Input
from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.data.documents import NAMES
from baton.tasks.data.known_documents import Found, KnownItem, find_known
from baton.tasks.data.partition_cache import DiskCache
from tests.benchmarks.harness import report

NEW = 10_000
ROWS = 20_000  # rows of a row group, and of a file of the source
PARTITION = 1_000_000


def write(path: Path, start: int, end: int) -> None:
    """Write some of the documents."""
    with pq.ParquetWriter(path, NAMES, compression="zstd", use_dictionary=False) as file:
        for first in range(start, end, ROWS):
            places = range(first, min(first + ROWS, end))
            ids = [blake3(place.to_bytes(8)).hexdigest() for place in places]
            names = [f"web/{place // ROWS:05}.jsonl:{place % ROWS}" for place in places]
            file.write_table(pa.table([ids, names], schema=NAMES))


def prepare(number: int, folder: Path, threads: int) -> KnownItem:
    corpus, scans = folder / "corpus", list[Path]()
    corpus.mkdir()
    write(corpus / "train-00000.parquet", 0, number)
    for start in range(0, number + NEW, PARTITION):
        end = min(start + PARTITION, number + NEW)
        scans.append(folder / f"{len(scans):05}.scan")
        scans[-1].mkdir()
        write(scans[-1] / "train-00000.parquet", start, end)
        np.save(scans[-1] / "held_out.npy", np.zeros(end - start, bool))
    write_manifest(corpus, "corpus", {})
    known = Input(read_manifest(corpus).digest, str(corpus))
    return KnownItem(folder / "known", [known], scans, [], DiskCache(folder / "kept"), threads)


def measure(item: KnownItem, results: Connection) -> None:
    started = time.perf_counter()
    find_known(item, lambda *_: None)
    taken = time.perf_counter() - started
    new = sum(int(np.count_nonzero(~np.load(item.masks(number))[0])) for number in range(len(item.scans)))
    assert (new, Found.read(item.folder)) == (NEW, Found())
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = used.ru_utime + used.ru_stime
    results.send({"wall_s": taken, "cpu_s": cpu_s, "memory_mb": used.ru_maxrss * 1024 / 1e6})


def measured(number: int, threads: int) -> dict[str, float]:
    spawned = multiprocessing.get_context("spawn")
    receiver, sender = spawned.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        process = spawned.Process(target=measure, args=(prepare(number, Path(folder), threads), sender))
        process.start()
        sender.close()
        found: dict[str, float] = receiver.recv()
        process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    rows: list[tuple[str, str]] = []
    figures: dict[str, float] = {}
    for number in options.documents:
        found = measured(number, options.threads)
        rows.append((f"{number:,} documents", ", ".join(f"{name} {value:.0f}" for name, value in found.items())))
        print(*rows[-1], flush=True)
        figures |= {f"{name}_{number}": value for name, value in found.items()}
    report("known", rows, figures)


if __name__ == "__main__":
    main()
