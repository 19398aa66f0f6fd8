"""`python -m tests.benchmarks.tokenize [--megabytes N] [--rounds N]`

Compare the writer of the shards engine with `tokenizers.Tokenizer.encode_batch_fast` on the same cores. The library
starts with a part of the text in memory, ends with Python objects and writes nothing. The writer starts with the corpus
in Parquet and ends with `.bin/.idx` on disk; it is timed with its workers running, and the preceding comparison of
encoders (compare_tokens.py) is reported separately (`comparison_s`), as its time does not grow with the corpus.

Compare the engine's entire process, including that comparison, with datatrove's Megatron tokenizer, with the same
tokenizer on one core: MB of text per CPU second, and the memory of the largest process. datatrove processes a part of
the text.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import count, cycle
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "true"  # the library uses all cores

from tokenizers import pre_tokenizers, trainers

from baton.infra.process.limits import cores
from baton.tasks.core.job import Input, Job
from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.data.documents import Split, SplitWriter, document, read_documents, split_names
from baton.tasks.data.encode import DocumentEncoder, EncodeItem, encode
from baton.tasks.data.encoders import choose
from baton.tasks.data.machines import SPEEDS, Rounds
from baton.tasks.data.merge_parts import JoinItem, join
from baton.tasks.data.prefixes import parts
from baton.tasks.data.rounds import Workers, workers
from baton.tasks.data.shards import ROUNDS
from baton.tasks.data.source_spec import StdlibSource
from baton.tasks.data.tokenizer import untrained
from baton.tasks.models.tokenizers import plain
from tests.benchmarks.harness import Run, report, side_by_side, timed
from tests.data.by_hand import new_job

VOCABULARY = 4096
PART_MB = 16.0  # size of the part of the text that the libraries process


def write_corpus(directory: Path, megabytes: float, split: Split = "train") -> None:
    """Write the source code of the standard library repeatedly, up to a size."""
    writer = SplitWriter(directory, split)
    paths = [Path(file.place) for file in StdlibSource().files()]
    for number, path in enumerate(cycle(paths)):
        if writer.bytes > megabytes * 1e6:
            break
        writer.add(document(f"{number}", path.read_text(errors="replace")))
    writer.close()


def write_tokenizer(directory: Path, texts: list[str]) -> None:
    bpe = untrained("llama3")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    bpe.save(str(directory / "tokenizer.json"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--datatrove", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.datatrove:
        tokenize_by_datatrove(arguments.datatrove)
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), arguments.megabytes, arguments.rounds)


def write_inputs(folder: Path, megabytes: float) -> None:
    for name, size in (("corpus", megabytes), ("part", min(megabytes, PART_MB))):
        (folder / name).mkdir()
        write_corpus(folder / name, size)
        write_corpus(folder / name, 0.1, "held_out")
        write_manifest(folder / name, "corpus", {"bytes": size * 1e6, "held_out_bytes": 1e5})
    (folder / "tokenizer").mkdir()
    write_tokenizer(folder / "tokenizer", [item.text for item in read_documents(folder / "part", "train")])
    write_manifest(folder / "tokenizer", "tokenizer", {"vocab_size": VOCABULARY, "eos_id": 0})


def size_mb(corpus: Path) -> float:
    return sum(len(item.text.encode()) for item in read_documents(corpus, "train")) / 1e6


def compare(folder: Path, megabytes: float, rounds: int) -> None:
    # written by another process, before the processes of the contenders start: until a process has loaded its program,
    # the memory of its parent counts as its own
    writer = multiprocessing.get_context("spawn").Process(target=write_inputs, args=(folder, megabytes))
    writer.start()
    writer.join()
    runs, memory = beside_datatrove(folder, rounds)
    corpus, tokenizer = folder / "corpus", folder / "tokenizer"
    texts = [item.text for item in read_documents(folder / "part", "train")]
    whole, part = size_mb(corpus), size_mb(folder / "part")
    library = plain(tokenizer)
    started = time.perf_counter()
    choice = choose(tokenizer, corpus)
    comparison_s = time.perf_counter() - started
    print(choice.text())
    encoder = DocumentEncoder(tokenizer, VOCABULARY, 0, (), choice)
    job = Job(folder, "shards", "tokenized_corpus", {}, {})
    about = read_manifest(corpus)
    given = Input(about.digest, str(corpus))
    files = [part for name in split_names(about.files, "train") for part in parts(name, about.files[name].size)]
    attempt = count()

    def write(pool: Workers) -> None:
        """Run both rounds of the engine."""
        to = folder / f"attempt-{next(attempt)}"
        items = [EncodeItem(to / f"{number}", given, part, encoder, None) for number, part in enumerate(files)]
        rounds = Rounds(job, ROUNDS, pool)
        folders = [item.folder for item in items]
        rounds.run("encode", encode, items, folders, [part.size for part in files])
        rounds.run("join", join, [JoinItem(to / "train", folders, encoder.dtype)], [to / "train"], [1])
        shutil.rmtree(to)

    with workers(cores()) as pool:
        contenders: dict[str, Callable[[], object]] = {
            "writer": lambda: write(pool),
            "library": lambda: library.encode_batch_fast(texts, add_special_tokens=False),
        }
        side_by_side(contenders, 1)  # warm up the caches and all workers
        times = side_by_side(contenders, rounds)
    speed = {
        "writer": whole / statistics.median(times["writer"]),
        "library": part / statistics.median(times["library"]),
    }
    by_cpu = {
        name: size / statistics.median(run.cpu_s for run in runs[name])
        for name, size in (("engine", whole), ("datatrove", part))
    }
    ratio, over_datatrove = speed["writer"] / speed["library"], by_cpu["engine"] / by_cpu["datatrove"]
    peaks = {name: statistics.median(run.peak_mb for run in runs[name]) for name in runs}
    report(
        "tokenize",
        [
            ("text", f"{whole:.0f} MB, for the libraries {part:.0f} MB, {rounds} rounds"),
            ("tokenizers.encode_batch_fast", f"{speed['library']:.2f} MB/s"),
            ("Baton's writer", f"{speed['writer']:.1f} MB/s"),
            ("writer / encode_batch_fast", f"{ratio:.1f}  (target: at least 10)"),
            ("comparison of the encoders", f"{comparison_s:.1f} s"),
            ("engine, with it", f"{by_cpu['engine']:.2f} MB by CPU-second"),
            ("engine / datatrove, by CPU-second", f"{over_datatrove:.1f}  (target: at least 20)"),
            ("memory of a worker", f"{max(memory):.0f} MB  (target: at most 300)"),
            ("of the engine's largest process, which compares", f"{peaks['engine']:.0f} MB"),
            ("of datatrove's", f"{peaks['datatrove']:.0f} MB"),
        ],
        {
            "writer_over_encode_batch_fast": ratio,
            "writer_mb_per_s": speed["writer"],
            "encode_batch_fast_mb_per_s": speed["library"],
            "comparison_s": comparison_s,
            "engine_mb_per_cpu_s": by_cpu["engine"],
            "engine_over_datatrove": over_datatrove,
            "worker_peak_mb": max(memory),
            "engine_peak_mb": peaks["engine"],
            "datatrove_peak_mb": peaks["datatrove"],
        },
    )


def beside_datatrove(folder: Path, rounds: int) -> tuple[dict[str, list[Run]], list[float]]:
    """Run the engine and datatrove on one core, each in its own processes. Also returns the memory of the engine's
    worker in MB."""
    one_core = {"RAYON_NUM_THREADS": "1", "BATON_HOME": str(folder / "home")}
    runs: dict[str, list[Run]] = {"engine": [], "datatrove": []}
    memory = []
    for number in range(rounds):
        place = folder / f"engine-{number}"
        new_job(place, "shards", {"concurrency": 1}, corpus=folder / "corpus", tokenizer=folder / "tokenizer")
        runs["engine"].append(timed(["-m", "baton.tasks.data.shards", str(place)], **one_core))
        encoding, *_ = json.loads((place / "output/record" / SPEEDS).read_text())
        memory.append(encoding["memory"] / 1e6)
        shutil.rmtree(place)
        runs["datatrove"].append(timed(["-m", "tests.benchmarks.tokenize", "--datatrove", str(folder)], **one_core))
        shutil.rmtree(folder / "datatrove")
    return runs, memory


def tokenize_by_datatrove(folder: Path) -> None:
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import MegatronDocumentTokenizer

    to = folder / "datatrove"
    tokenizer = MegatronDocumentTokenizer(
        str(to / "tokens"), tokenizer_name_or_path=str(folder / "tokenizer" / "tokenizer.json"), eos_token=""
    )
    pipeline = [ParquetReader(str(folder / "part"), glob_pattern="train-*.parquet"), tokenizer]
    LocalPipelineExecutor(pipeline, tasks=1, logging_dir=str(to / "logs")).run()
    assert list((to / "tokens").glob("*.bin"))


if __name__ == "__main__":
    main()
