"""`python -m tests.benchmarks.tokenizer [--megabytes 128 512] [--folders FOLDER …]`

The memory and CPU time that the tokenizer engine needs for this much text, with a vocabulary of 32,768, compared with
the estimates of the plan. The text consists of the files in the folders, each once; the default folders are the
installed Python packages and the standard library, with about 550 MB.
"""

import argparse
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from baton.tasks.core.manifest import write_manifest
from baton.tasks.data.documents import SplitWriter, document
from baton.tasks.data.spec import TokenizerSpec
from tests.benchmarks.harness import report, timed
from tests.data.by_hand import new_job

SUFFIXES = {".py", ".pyi", ".h", ".hpp", ".cuh", ".c", ".js", ".html", ".md", ".rst", ".txt"}
LARGEST = 2_000_000  # maximum size of a file in bytes
INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[128.0, 512.0])
    parser.add_argument("--folders", type=Path, nargs="+", default=INSTALLED)
    arguments = parser.parse_args()
    rows: list[tuple[str, str]] = []
    figures: dict[str, float] = {}
    for megabytes in arguments.megabytes:
        spec = TokenizerSpec(vocab_size=32_768, sample_mb=100_000)
        with tempfile.TemporaryDirectory() as folder:
            corpus = Path(folder, "corpus")
            written_mb = write_corpus(corpus, arguments.folders, megabytes) / 1e6
            new_job(Path(folder, "job"), "tokenizer", spec.model_dump(mode="json"), corpus=corpus)
            run = timed(["-m", "baton.tasks.data.tokenizer", str(Path(folder, "job"))])
        planned_mb = spec.model_copy(update={"sample_mb": written_mb}).memory() / 1e6
        used = f"{run.peak_mb:.0f} MB of memory (plan: {planned_mb:.0f}), {run.cpu_s:.0f} s of CPU"
        rows.append((f"{written_mb:.0f} MB of text", used))
        figures |= {f"peak_mb_{written_mb:.0f}": run.peak_mb, f"cpu_s_{written_mb:.0f}": run.cpu_s}
    report("tokenizer", rows, figures)


def write_corpus(corpus: Path, folders: Sequence[Path], megabytes: float) -> int:
    """Write the corpus, and return its size in bytes."""
    corpus.mkdir()
    writers = SplitWriter(corpus, "train"), SplitWriter(corpus, "held_out")
    seen = set[str]()
    for number, (name, text) in enumerate(texts(folders)):
        item = document(name, text)
        if item.id not in seen:
            seen.add(item.id)
            writers[number == 0].add(item)
        if writers[0].bytes >= megabytes * 1e6:
            break
    for writer in writers:
        writer.close()
    write_manifest(corpus, "corpus", {"bytes": writers[0].bytes, "documents": writers[0].documents})
    return writers[0].bytes


def texts(folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and path.stat().st_size <= LARGEST:
                yield str(path), path.read_bytes().decode(errors="ignore")


if __name__ == "__main__":
    main()
