"""`python -m tests.benchmarks.corpus [--megabytes N] [--rounds N] [--documents N]`

Exact deduplication of `.jsonl.zst`, from files to files: the corpus engine on one core and on two, a single pass with
all hashes in a Python set (the engine's earlier algorithm), and datatrove's three steps. Each file is a partition; one
more run on one core has partitions so small that every file is split first. Throughput is in megabytes of text per CPU
second of all processes, which is meaningful on a busy machine too; one core and two are compared by wall-clock time.

With --documents: the memory of the engine's largest process on that many documents of a few words, and on a quarter of
them.
"""

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pyarrow as pa

from tests.benchmarks.harness import Run, median_ratio, report, timed
from tests.data.by_hand import digest, new_job

FILES = 16  # files of short documents
FILE_MB = 16.0  # size of the text of a file; 8.6 MB compressed
COPIES = 0.05
PARTITION_MB = 5.0  # a file of one to two times this size is a partition
CUT_MB = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=128.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--documents", type=int, default=0)
    parser.add_argument("--contender", choices=["single_pass", "datatrove"])
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.contender:
        globals()[arguments.contender](arguments.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        if arguments.documents:
            compare_memory(Path(folder), arguments.documents)
        else:
            compare_speed(Path(folder), arguments.megabytes, arguments.rounds)


def compare_speed(folder: Path, megabytes: float, rounds: int) -> None:
    files = write_source(folder / "source", megabytes)
    engines = {"engine": (1, PARTITION_MB), "engine_2": (2, PARTITION_MB), "engine_cut": (1, CUT_MB)}
    runs: dict[str, list[Run]] = {name: [] for name in (*engines, "single_pass", "datatrove")}
    digests = set()
    for number in range(rounds):
        place = folder / str(number)
        for name, (cores, size_mb) in engines.items():
            job, run = engine(folder, place / name, cores, size_mb)
            runs[name].append(run)
            digests.add((size_mb, digest(job)))
        for name in ("single_pass", "datatrove"):
            (place / name).mkdir()
            (place / name / "source").symlink_to(folder / "source")
            words = ["-m", "tests.benchmarks.corpus", "--contender", name, "--folder", str(place / name)]
            runs[name].append(timed(words))
    assert len(digests) == 2, "one core and two cores give different corpora"
    cpu = {name: [run.cpu_s for run in of] for name, of in runs.items()}
    speed = {name: megabytes / statistics.median(values) for name, values in cpu.items()}
    over_single = median_ratio(cpu["single_pass"], cpu["engine"])
    over_datatrove = median_ratio(cpu["datatrove"], cpu["engine"])
    two = median_ratio([run.wall_s for run in runs["engine"]], [run.wall_s for run in runs["engine_2"]])
    two_cpu = median_ratio(cpu["engine"], cpu["engine_2"])
    peak = max(run.peak_mb for run in (*runs["engine"], *runs["engine_2"]))
    report(
        "corpus",
        [
            ("text", f"{megabytes:.0f} MB in {files} files, {rounds} rounds"),
            *((name, f"{value:.1f} MB by CPU-second") for name, value in speed.items()),
            ("engine, target", "at least 25 MB by CPU-second"),
            ("engine / single pass", f"{over_single:.2f}"),
            ("engine / datatrove", f"{over_datatrove:.2f}  (target: at least 3)"),
            ("two cores / one, by the clock", f"{two:.2f}  (target: at least 1.8)"),
            ("CPU of one core / of two", f"{two_cpu:.2f}"),
            ("largest process", f"{peak:.0f} MB"),
        ],
        {
            "engine_mb_per_cpu_s": speed["engine"],
            "engine_cut_mb_per_cpu_s": speed["engine_cut"],
            "engine_over_single_pass": over_single,
            "engine_over_datatrove": over_datatrove,
            "two_cores_over_one": two,
            "cpu_of_one_core_over_two": two_cpu,
            "peak_mb": peak,
        },
    )


def compare_memory(folder: Path, documents: int) -> None:
    peaks = {}
    for number in (documents // 4, documents):
        place = folder / str(number)
        write_short(place / "source", number)
        _, run = engine(place, place / "job", 2, 32.0)
        peaks[number] = run.peak_mb
    rows = [
        (f"{number:,} short documents", f"{peak:.0f} MB in the largest process  (target: at most 1500)")
        for number, peak in peaks.items()
    ]
    report("corpus_memory", rows, {"peak_mb": peaks[documents], "growth": peaks[documents] / peaks[documents // 4]})


def engine(folder: Path, place: Path, cores: int, size_mb: float) -> tuple[Path, Run]:
    """Return the corpus that the engine creates from `folder/source`."""
    source = {"kind": "jsonl", "path": str(folder / "source")}
    spec = {"source": source, "partitions": {"size_mb": size_mb, "concurrency": cores}}
    job = new_job(place, "corpus", spec)
    run = timed(["-m", "baton.tasks.data.corpus", str(place)], BATON_HOME=str(place / "home"))
    return job.output, run


def single_pass(folder: Path) -> None:
    from baton.tasks.data.documents import SPLITS, SplitWriter, split_of
    from baton.tasks.data.scan import Counts, valid_document
    from baton.tasks.data.source_spec import JsonlSource
    from baton.tasks.data.sources import read_source

    counts, seen = Counts(), set[bytes]()
    writers = {split: SplitWriter(folder, split) for split in SPLITS}
    for raw in read_source(JsonlSource(path=str(folder / "source"))):
        document = valid_document(raw, counts)
        if document and (key := bytes.fromhex(document.id[:32])) not in seen:
            seen.add(key)
            writers[split_of(document.id, 0.05)].add(document)
    for writer in writers.values():
        writer.close()


def datatrove(folder: Path) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup.exact_dedup import (
        ExactDedupConfig,
        ExactDedupFilter,
        ExactDedupSignature,
        ExactFindDedups,
    )
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import ParquetWriter

    # fsspec reads Zstandard with a package that is not installed here; register the decoder that the engine uses
    fsspec.compression.register_compression(
        "zstd", lambda file, mode, **_: pa.CompressedInputStream(pa.PythonFile(file), "zstd"), "zst"
    )
    config = ExactDedupConfig(content_getter=lambda document: document.text.encode())
    reader = JsonlReader(str(folder / "source"))
    signatures, found = str(folder / "signatures"), str(folder / "found")
    steps = [
        [reader, ExactDedupSignature(signatures, config)],
        [ExactFindDedups(signatures, found, config)],
        [reader, ExactDedupFilter(found, config), ParquetWriter(str(folder / "output"), compression="zstd")],
    ]
    for number, pipeline in enumerate(steps):
        LocalPipelineExecutor(pipeline, tasks=1, logging_dir=str(folder / f"logs-{number}")).run()
    assert list((folder / "output").iterdir()), "datatrove only warns of files that it cannot read"


def write_source(folder: Path, megabytes: float) -> int:
    """Write files of generated prose, part of which is copied from earlier text. Returns the number of documents."""
    folder.mkdir(parents=True)
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 10))) for _ in range(20_000)]
    known = [" ".join(draw.choices(words, k=100))]
    files = max(2, round(megabytes / FILE_MB))
    for number in range(files):
        size = 0
        with pa.CompressedOutputStream(str(folder / f"{number:02}.jsonl.zst"), "zstd") as file:
            while size < megabytes * 1e6 / files:
                copied = draw.random() < COPIES
                text = draw.choice(known) if copied else " ".join(draw.choices(words, k=draw.randint(40, 220)))
                if not copied and len(known) < 10_000:
                    known.append(text)
                size += len(text)
                file.write(json.dumps({"text": text}).encode() + b"\n")
    return files


def write_short(folder: Path, documents: int) -> None:
    folder.mkdir(parents=True)
    for number in range(FILES):
        with (folder / f"{number:02}.jsonl").open("w") as file:
            for row in range(documents // FILES):
                file.write(f'{{"text": "short document {row * FILES + number}"}}\n')


if __name__ == "__main__":
    main()
