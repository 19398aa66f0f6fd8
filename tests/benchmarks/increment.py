"""`python -m tests.benchmarks.increment [--megabytes N] [--kind files|jsonl|jsonl.zst]`

The cost of the data stages on a day with 1 % new text (`find_new` over the entire source, then `tokenize` of the new
text), as a share of the cost of processing everything again (`prepare_corpus` of the entire source, then `tokenize`).
Each is a complete run of an engine's process, with the checks of its inputs and the digests of its output; the
tokenizer is trained beforehand. The partitions of the previous day exist, and all results are written to a separate
home. The text is the source code of the standard library, repeated, with a first line that makes each document unique.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from baton.tasks.data.source_spec import StdlibSource
from tests.benchmarks.harness import report
from tests.data.by_hand import facts, new_job, start

NEW = 0.01  # share of the text
VOCABULARY = 4096
TO_TRAIN_ON = 20.0  # MB of text for the tokenizer's training
LINES_FILE = 64.0  # MB of text in one .jsonl


def texts(megabytes: float, first: int) -> Iterator[str]:
    """Generate distinct documents with this much text in total; `first` is the number of the first copy."""
    library = [Path(file.place).read_text(errors="replace") for file in StdlibSource().files()]
    left = megabytes * 1e6
    for copy in count(first):
        for text in library:
            if left <= 0:
                return
            left -= len(text)
            yield f"# copy {copy}\n{text}"


def write_files(folder: Path, megabytes: float, first: int) -> None:
    for number, text in enumerate(texts(megabytes, first)):
        place = folder / f"{first}-{number // 1000:04}" / f"{number % 1000:03}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def write_jsonl(folder: Path, megabytes: float, first: int, suffix: str = ".jsonl") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = max(1, round(megabytes / LINES_FILE))
    for number in range(files):
        path = str(folder / f"{first}-{number:03}{suffix}")
        with pa.output_stream(path, compression="zstd" if suffix.endswith(".zst") else None) as lines:
            for text in texts(megabytes / files, first + number * 10_000):
                lines.write(json.dumps({"text": text}).encode() + b"\n")


WRITERS: dict[str, Callable[[Path, float, int], None]] = {
    "files": write_files,
    "jsonl": write_jsonl,
    "jsonl.zst": partial(write_jsonl, suffix=".jsonl.zst"),
}


@dataclass(frozen=True)
class Cost:
    seconds: float = 0
    cpu_s: float = 0  # CPU seconds of all cores

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.seconds + other.seconds, self.cpu_s + other.cpu_s)


def cost(folder: Path, home: str, stage: str, spec: dict[str, Any], **inputs: Path | list[Path]) -> tuple[Path, Cost]:
    """Run an engine with a home, which stores partitions; returns its output and the resources that it and its workers
    used."""
    os.environ["BATON_HOME"] = str(folder.with_name(home))
    job = new_job(folder, stage, spec, **inputs)
    cpu_s, started = _cpu_s(), time.perf_counter()
    said, _ = (process := start(job)).communicate()
    took = Cost(time.perf_counter() - started, _cpu_s() - cpu_s)
    if process.returncode:
        raise SystemExit(said)
    print(f"  {folder.name}: {took.seconds:.1f} s", flush=True)
    return job.output, took


def _cpu_s() -> float:
    """Return the CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(folder: Path, megabytes: float, kind: str) -> None:
    write, source = WRITERS[kind], folder / "source"
    spec = {"source": {"kind": kind.removesuffix(".zst"), "path": str(source)}}
    write(source, megabytes * (1 - NEW), 0)
    known, _ = cost(folder / "known", "home", "corpus", spec)
    write(source, megabytes * NEW, 10_000_000)
    write_files(folder / "some", min(megabytes, TO_TRAIN_ON), 0)
    of_some = {"source": {"kind": "files", "path": str(folder / "some")}}
    some, _ = cost(folder / "some-corpus", "home", "corpus", of_some)
    tokenizer, _ = cost(folder / "tokenizer", "home", "tokenizer", {"vocab_size": VOCABULARY}, corpus=some)

    new, found = cost(folder / "find-new", "home", "increment", spec, known=[known])
    _, new_shards = cost(folder / "tokenize-new", "home", "shards", {}, corpus=new, tokenizer=tokenizer)
    whole, corpus = cost(folder / "corpus", "home-of-all", "corpus", spec)
    _, shards = cost(folder / "tokenize", "home-of-all", "shards", {}, corpus=whole, tokenizer=tokenizer)

    documents, text = ([facts(each)[name] for each in (new, whole)] for name in ("documents", "bytes"))
    part, everything = found + new_shards, corpus + shards
    share, cpu_share = part.seconds / everything.seconds, part.cpu_s / everything.cpu_s
    report(
        "increment",
        [
            ("text", f"{text[1] / 1e6:.0f} MB, {documents[1]} documents to train on, as {kind}"),
            ("new", f"{text[0] / 1e6:.1f} MB, {documents[0]} documents"),
            ("find_new", f"{found.seconds:.1f} s"),
            ("tokenize what is new", f"{new_shards.seconds:.1f} s"),
            ("prepare_corpus of everything", f"{corpus.seconds:.1f} s"),
            ("tokenize everything", f"{shards.seconds:.1f} s"),
            ("new / everything", f"{100 * share:.1f} %"),
            ("the same in CPU time", f"{100 * cpu_share:.1f} %"),
        ],
        {
            "increment_over_everything": share,
            "increment_over_everything_cpu": cpu_share,
            "find_new_s": found.seconds,
            "tokenize_new_s": new_shards.seconds,
            "corpus_s": corpus.seconds,
            "tokenize_s": shards.seconds,
            "megabytes": megabytes,
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--kind", choices=WRITERS, default="jsonl")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), arguments.megabytes, arguments.kind)


if __name__ == "__main__":
    main()
