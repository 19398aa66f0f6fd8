"""`python -m tests.benchmarks.tokenize [--megabytes N] [--rounds N]`

The shards engine's writer against `tokenizers.Tokenizer.encode_batch` on the same text and the same
cores. encode_batch starts with the text in memory, ends with Python objects and writes nothing. The
writer starts with the corpus in Parquet and ends with `.bin/.idx` on disk. It is timed with its
workers running (`writer_over_encode_batch`: what a large corpus sees); the first time, with their start,
is told apart (`first_s`).

The whole engine's process against datatrove's Megatron tokenizer, on the same Parquet file, tokenizer and core: seconds
of CPU and the memory of the largest process.
"""

import argparse
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "true"  # encode_batch on all cores

from tokenizers import Tokenizer, trainers

from infra.limits import cores
from tasks.data.documents import Split, SplitWriter, document, read_documents, split_files
from tasks.data.encode import EncodeItem, Encoder, encode
from tasks.data.machines import Rounds
from tasks.data.merge_parts import JoinItem, join
from tasks.data.prefixes import parts
from tasks.data.rounds import Workers, workers
from tasks.data.shards import ROUNDS
from tasks.data.source_spec import StdlibSource
from tasks.data.tokenizer import untrained
from tasks.job import Job
from tasks.manifest import write_manifest
from tests.benchmarks.harness import Run, median_ratio, report, side_by_side, timed
from tests.data.by_hand import new_job

VOCABULARY = 4096


def write_corpus(directory: Path, megabytes: float, split: Split = "train") -> None:
    """The standard library's source, over and over, up to a size."""
    writer = SplitWriter(directory, split)
    paths = [Path(file.place) for file in StdlibSource().files()]
    for number, path in enumerate(cycle(paths)):
        if writer.bytes > megabytes * 1e6:
            break
        writer.add(document(f"{number}", path.read_text(errors="replace")))
    writer.close()


def write_tokenizer(directory: Path, texts: list[str]) -> None:
    bpe = untrained()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False))
    bpe.save(str(directory / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=24.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--datatrove", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.datatrove:
        tokenize_by_datatrove(arguments.datatrove)
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), arguments.megabytes, arguments.rounds)


def write_inputs(folder: Path, megabytes: float) -> None:
    write_corpus(folder, megabytes)
    write_tokenizer(folder, [item.text for item in read_documents(folder, "train")])


def compare(folder: Path, megabytes: float, rounds: int) -> None:
    # in another process, and the contenders' processes come next: until it has loaded its program, a process counts the
    # memory of the one that started it as its own
    writer = multiprocessing.get_context("spawn").Process(target=write_inputs, args=(folder, megabytes))
    writer.start()
    writer.join()
    runs = beside_datatrove(folder, rounds)
    texts = [item.text for item in read_documents(folder, "train")]
    size_mb = sum(len(text.encode()) for text in texts) / 1e6
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoder = Encoder(folder, VOCABULARY, 0)
    job = Job(folder, "shards", "tokenized_corpus", {}, {})
    files = [part for file in split_files(folder, "train") for part in parts(file)]
    attempt = count()

    def write(pool: Workers) -> None:
        """Both rounds of the engine."""
        to = folder / f"attempt-{next(attempt)}"
        items = [
            EncodeItem(to / f"{number}", part.file, part.start, part.end, encoder, None)
            for number, part in enumerate(files)
        ]
        rounds = Rounds(job, ROUNDS, pool)
        folders = [item.folder for item in items]
        rounds.run("encode", encode, items, folders, [part.size for part in files])
        rounds.run("join", join, [JoinItem(to / "train", folders, encoder.dtype)], [to / "train"], [1])
        shutil.rmtree(to)

    started = time.perf_counter()
    with workers(cores()) as pool:
        write(pool)
        start_s = time.perf_counter() - started
        contenders: dict[str, Callable[[], object]] = {
            "writer": lambda: write(pool),
            "encode_batch": lambda: plain.encode_batch(texts),
        }
        side_by_side(contenders, 1)  # warm: caches, all workers
        times = side_by_side(contenders, rounds)
    over_datatrove = median_ratio(*([run.cpu_s for run in runs[name]] for name in ("datatrove", "engine")))
    memory = median_ratio(*([run.peak_mb for run in runs[name]] for name in ("engine", "datatrove")))
    ratio = median_ratio(times["encode_batch"], times["writer"])
    speed = {name: size_mb / statistics.median(values) for name, values in times.items()}
    report(
        "tokenize",
        [
            ("text", f"{size_mb:.1f} MB, {len(texts)} documents, {rounds} rounds"),
            ("tokenizers.encode_batch", f"{speed['encode_batch']:.2f} MB/s"),
            ("Baton's writer", f"{speed['writer']:.2f} MB/s"),
            ("writer / encode_batch", f"{ratio:.2f}  (target: at least 1)"),
            ("engine / datatrove, by CPU-second", f"{over_datatrove:.2f}  (target: at least 1.1)"),
            ("memory, engine / datatrove", f"{memory:.2f}  (target: at most 0.2)"),
            ("the first time, with the workers' start", f"{start_s:.1f} s"),
        ],
        {
            "writer_over_encode_batch": ratio,
            "writer_mb_per_s": speed["writer"],
            "encode_batch_mb_per_s": speed["encode_batch"],
            "first_s": start_s,
            "engine_over_datatrove": over_datatrove,
            "memory_over_datatrove": memory,
        },
    )


def beside_datatrove(folder: Path, rounds: int) -> dict[str, list[Run]]:
    """Both on one core, each in its own processes."""
    corpus, tokenizer = folder / "corpus", folder / "tokenizer"
    for of in (corpus, tokenizer):
        of.mkdir()
    for file in split_files(folder, "train"):
        (corpus / file.name).hardlink_to(file)
    write_corpus(corpus, 0.1, "held_out")
    (tokenizer / "tokenizer.json").hardlink_to(folder / "tokenizer.json")
    write_manifest(corpus, "corpus", {})
    write_manifest(tokenizer, "tokenizer", {"vocab_size": VOCABULARY, "eos_id": 0})
    one_core = {"RAYON_NUM_THREADS": "1", "BATON_HOME": str(folder / "home")}
    runs: dict[str, list[Run]] = {"engine": [], "datatrove": []}
    for number in range(rounds):
        place = folder / f"engine-{number}"
        new_job(place, "shards", {"concurrency": 1}, corpus=corpus, tokenizer=tokenizer)
        runs["engine"].append(timed(["-m", "tasks.data.shards", str(place)], **one_core))
        shutil.rmtree(place)
        runs["datatrove"].append(timed(["-m", "tests.benchmarks.tokenize", "--datatrove", str(folder)], **one_core))
        shutil.rmtree(folder / "datatrove")
    return runs


def tokenize_by_datatrove(folder: Path) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import MegatronDocumentTokenizer

    to = folder / "datatrove"
    tokenizer = MegatronDocumentTokenizer(
        str(to / "tokens"), tokenizer_name_or_path=str(folder / "tokenizer.json"), eos_token=""
    )
    pipeline = [ParquetReader(str(folder / "corpus"), glob_pattern="train-*.parquet"), tokenizer]
    LocalPipelineExecutor(pipeline, tasks=1, logging_dir=str(to / "logs")).run()
    assert list((to / "tokens").glob("*.bin"))


if __name__ == "__main__":
    main()
