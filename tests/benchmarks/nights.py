"""`python -m tests.benchmarks.nights [--nights 1 100 500] [--documents 1000000] [--changes 20] [--threads 1]`

The comparison of a night's source with known text (tasks/data/known_documents.py) after a number of nights. The first
corpus has nine tenths of the documents and the nights add the rest, as names and ids in Parquet; each night also edits,
moves and deletes some documents (`--changes` of each), which its `changes.json` lists. Each measured night runs in a
separate process, once with the blocks that earlier nights have stored and once without any, so that it reads all
corpora. Reported are its time, including the checks of its inputs, its peak memory, the files and bytes of earlier
nights that it reads, and the bytes that it writes for later nights. Real corpora have their texts in the same files.
Target: with blocks, all figures stay at those of the first night, however many nights there were.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from baton.tasks.core import job as job_module
from baton.tasks.core.manifest import ALL, Manifest, verify, write_manifest
from baton.tasks.data import partition_cache
from baton.tasks.data.documents import NAMES
from baton.tasks.data.known_documents import Found, KnownItem, find_known
from baton.tasks.data.partition_cache import DiskCache
from baton.tasks.data.source_changes import Changes, Edited, Named, Renamed
from tests.benchmarks.harness import report
from tests.data.by_hand import new_job

FIRST = 0.9  # share of the documents that are in the first corpus
ROWS = 20_000  # rows of a row group
PARTITION = 1_000_000

Numbers = npt.NDArray[np.int64]


def ids_of(documents: Numbers) -> pa.Array:
    """Generate ids in random order, like digests: 64 hexadecimal digits for each number (SplitMix64)."""
    mixed = (documents.astype(np.uint64)[:, None] * np.uint64(4) + np.arange(1, 5, dtype=np.uint64)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    digits = (mixed ^ (mixed >> np.uint64(31))).tobytes().hex().encode()
    ends = np.arange(len(documents) + 1, dtype=np.int32) * 64
    return pa.StringArray.from_buffers(len(documents), pa.py_buffer(ends), pa.py_buffer(digits))


def names_of(places: Numbers) -> pa.Array:
    file, line = (pc.cast(pa.array(part), pa.string()) for part in np.divmod(places, ROWS))
    return pc.binary_join_element_wise("web/", pc.utf8_lpad(file, 6, "0"), ".jsonl:", line, "")


def write(path: Path, documents: Numbers, places: Numbers) -> None:
    with pq.ParquetWriter(path, NAMES, compression="zstd", use_dictionary=False) as file:
        for start in range(0, len(documents), ROWS):
            rows = slice(start, start + ROWS)
            file.write_table(pa.table([ids_of(documents[rows]), names_of(places[rows])], schema=NAMES))


@dataclass
class History:
    """A source that changes every night, and its corpora. Documents and names are represented by numbers."""

    folder: Path
    places: Numbers  # the name of each document, with room for the documents of all nights
    alive: npt.NDArray[np.bool_]
    documents: int = 0  # number of documents so far, which is also the number of names
    names: int = 0
    gone: list[int] = field(default_factory=list)
    corpora: list[Path] = field(default_factory=list)

    def begin(self, documents: int) -> None:
        """Write the first corpus."""
        self._add(np.arange(documents))
        self.names = documents

    def next(self, new: int, changes: int) -> None:
        """Write a night with new, edited, moved and deleted documents."""
        random = np.random.default_rng(len(self.corpora))
        candidates = np.unique(random.integers(self.documents, size=6 * changes + 60))
        edited, moved, deleted = np.split(random.permutation(candidates[self.alive[candidates]])[: 3 * changes], 3)
        fresh = np.arange(self.names, self.names + new)
        self.names += new
        targets, elsewhere = np.split(fresh, [new - changes])
        targets[:changes] = self.places[edited]
        after = np.arange(self.documents, self.documents + changes)
        listed = Changes(
            edited=[Edited(source=name, before=old, after=now) for name, old, now in self._named(edited, after)],
            renamed=[
                Renamed(id=key, before=name, after=now)
                for (name, key), now in zip(self._named(moved), names_of(elsewhere).to_pylist(), strict=True)
            ],
            deleted=[Named(source=name, id=key) for name, key in self._named(deleted)],
        )
        self.gone += [*edited, *deleted]
        self.places[moved] = elsewhere
        self.alive[[*edited, *deleted]] = False
        self._add(targets, listed)

    def _named(self, documents: Numbers, *others: Numbers) -> list[tuple[str, ...]]:
        """Return the name and id of each document, and the ids of others."""
        columns = names_of(self.places[documents]), *map(ids_of, (documents, *others))
        return [*zip(*(column.to_pylist() for column in columns), strict=True)]

    def _add(self, places: Numbers, changes: Changes | None = None) -> None:
        """Add a corpus of new documents with these names."""
        documents = np.arange(self.documents, self.documents + len(places))
        self.documents += len(places)
        self.places[documents], self.alive[documents] = places, True
        corpus = self.folder / f"corpus-{len(self.corpora):05}"
        corpus.mkdir(parents=True)
        held_out = np.arange(len(documents)) % 100 == 0
        for split, rows in (("train", ~held_out), ("held_out", held_out)):
            write(corpus / f"{split}-00000.parquet", documents[rows], places[rows])
        if changes:
            changes.write(corpus)
        write_manifest(corpus, "corpus", {})
        self.corpora.append(corpus)

    def scans(self, folder: Path) -> list[Path]:
        """Return the partitions of today's source."""
        found, today = list[Path](), np.flatnonzero(self.alive)
        for start in range(0, len(today), PARTITION):
            rows = today[start : start + PARTITION]
            found.append(folder / f"{len(found):05}.scan")
            found[-1].mkdir(parents=True)
            write(found[-1] / "train-00000.parquet", rows, self.places[rows])
            np.save(found[-1] / "held_out.npy", np.zeros(len(rows), bool))
        return found


class Reads:
    """Counts the files and bytes that are verified, and therefore read."""

    def __init__(self) -> None:
        self.files = self.bytes = 0

    def verify(
        self, directory: Path, digest: str | None = None, patterns: Sequence[str] = ALL, origin: str = ""
    ) -> Manifest:
        manifest = verify(directory, digest, patterns, origin)
        self.files += 1 + len(manifest.files)
        self.bytes += sum(entry.size for entry in manifest.files.values())
        return manifest


def measure(
    folder: Path, corpora: list[Path], scans: Sequence[Path], cache: Path, threads: int, results: Connection
) -> None:
    """Measure a night with these known corpora, and with the blocks that are stored there."""
    job = new_job(folder, "increment", {}, known=corpora)
    reads = Reads()
    job_module.verify = partition_cache.verify = reads.verify  # type: ignore[attr-defined]
    before = size_of(cache)
    started = time.perf_counter()
    item = KnownItem(folder / "known", job.inputs_of("known"), scans, [], DiskCache(cache), threads)
    find_known(item, lambda *_: None)
    taken = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    results.send(
        {
            "wall_s": taken,
            "cpu_s": used.ru_utime + used.ru_stime,
            "memory_mb": used.ru_maxrss * 1024 / 1e6,
            "files": reads.files,
            "read_mb": reads.bytes / 1e6,
            "written_mb": (size_of(cache) - before) / 1e6,
        }
    )


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measured(folder: Path, history: History, cache: str, threads: int) -> dict[str, float]:
    """Measure the night after those of the history, in which nothing more has changed."""
    spawned = multiprocessing.get_context("spawn")
    receiver, sender = spawned.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        scans = history.scans(Path(place) / "scans")
        job = Path(place) / "job"
        process = spawned.Process(target=measure, args=(job, history.corpora, scans, folder / cache, threads, sender))
        process.start()
        sender.close()
        figures: dict[str, float] = receiver.recv()
        process.join()
        masks = [np.load(job / "known" / f"{number:05}.npy") for number in range(len(scans))]
        new = sum(int(np.count_nonzero(~mask[0])) for mask in masks)
        found = Found.read(job / "known")
        assert (new, found.edited, found.renamed, found.deleted, found.gone) == (0, 0, 0, 0, len(history.gone)), found
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, nargs="+", default=[1, 100, 500])
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    last = max(options.nights)
    new = max(2 * options.changes, round(options.documents * (1 - FIRST) / last))
    rows: list[tuple[str, str]] = []
    figures: dict[str, float] = {"documents": options.documents, "new_a_night": new, "changes": options.changes}
    with tempfile.TemporaryDirectory() as name:
        room = options.documents + new * last
        history = History(Path(name) / "corpora", np.zeros(room, np.int64), np.zeros(room, bool))
        history.begin(round(options.documents * FIRST))
        for night in range(1, last + 1):
            if night > 1:
                history.next(new, options.changes)
            if night + 1 in options.nights:
                measured(Path(name), history, "blocks", options.threads)
            for cache in ("blocks", f"none-{night}") if night in options.nights else ():
                found = measured(Path(name), history, cache, options.threads)
                what = "blocks" if cache == "blocks" else "corpora"
                said = ", ".join(f"{key} {value:,.0f}" for key, value in found.items())
                rows.append((f"night {night:,}, {what}", said))
                print(*rows[-1], flush=True)
                figures |= {f"{what}_{key}_{night}": value for key, value in found.items()}
    report("nights", rows, figures)


if __name__ == "__main__":
    main()
