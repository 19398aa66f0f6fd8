"""`python -m tests.benchmarks.tokenize [--megabytes N] [--rounds N]`

The shards engine's writer against `tokenizers.Tokenizer.encode_batch` on the same text and the same
cores. encode_batch starts with the text in memory, ends with Python objects and writes nothing. The
writer starts with the corpus in Parquet and ends with `.bin/.idx` on disk. It is timed with its
workers running (`writer_over_encode_batch`: what a large corpus sees); their start is told apart
(`workers_start_s`: what a small one pays once).
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "true"  # encode_batch on all cores

from tokenizers import Tokenizer, trainers

from tasks.data.documents import SplitWriter, document, read_documents, row_groups
from tasks.data.encode import encode_in_order, worker_pool
from tasks.data.indexed_dataset import token_dtype, write_index
from tasks.data.shards import Shard, Written
from tasks.data.source_spec import StdlibSource
from tasks.data.tokenizer import untrained
from tests.benchmarks.harness import median_ratio, report, side_by_side

VOCABULARY = 4096


def write_corpus(directory: Path, megabytes: float) -> None:
    """The standard library's source, over and over, up to a size."""
    writer = SplitWriter(directory, "train")
    paths = [Path(file.place) for file in StdlibSource().files()]
    for number, path in enumerate(cycle(paths)):
        if writer.bytes > megabytes * 1e6:
            break
        writer.add(document(f"{number}", path.read_text(errors="replace")))
    writer.close()


def write_tokenizer(directory: Path, texts: list[str]) -> Tokenizer:
    bpe = untrained()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False))
    bpe.save(str(directory / "tokenizer.json"))
    return bpe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=24.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), arguments.megabytes, arguments.rounds)


def compare(folder: Path, megabytes: float, rounds: int) -> None:
    write_corpus(folder, megabytes)
    texts = [item.text for item in read_documents(folder, "train")]
    size_mb = sum(len(text.encode()) for text in texts) / 1e6
    plain = write_tokenizer(folder, texts)
    groups, dtype = row_groups(folder, "train"), token_dtype(VOCABULARY)
    shard = Shard(*(folder / f"train.{suffix}" for suffix in ("bin", "idx", "lengths", "json")))

    started = time.perf_counter()
    with worker_pool(folder, 0, dtype) as pool:
        for _ in encode_in_order(pool, groups[:1]):
            start_s = time.perf_counter() - started

        def write() -> None:
            for _ in shard.append(Written(), encode_in_order(pool, groups)):
                pass
            write_index(shard.index, shard.lengths, dtype)

        contenders: dict[str, Callable[[], object]] = {
            "writer": write,
            "encode_batch": lambda: plain.encode_batch(texts),
        }
        side_by_side(contenders, 1)  # warm: caches, all workers
        times = side_by_side(contenders, rounds)
    ratio = median_ratio(times["encode_batch"], times["writer"])
    speed = {name: size_mb / statistics.median(values) for name, values in times.items()}
    report(
        "tokenize",
        [
            ("text", f"{size_mb:.1f} MB, {len(texts)} documents, {rounds} rounds"),
            ("tokenizers.encode_batch", f"{speed['encode_batch']:.2f} MB/s"),
            ("Baton's writer", f"{speed['writer']:.2f} MB/s"),
            ("writer / encode_batch", f"{ratio:.2f}  (target: at least 0.85)"),
            ("start of the workers", f"{start_s:.1f} s, once"),
        ],
        {
            "writer_over_encode_batch": ratio,
            "writer_mb_per_s": speed["writer"],
            "encode_batch_mb_per_s": speed["encode_batch"],
            "workers_start_s": start_s,
        },
    )


if __name__ == "__main__":
    main()
