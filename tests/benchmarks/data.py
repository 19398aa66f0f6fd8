"""`python -m tests.benchmarks.data [--megabytes N] [--rounds N]`

The speed at which the tokenizer engine feeds the BPE trainer of `tokenizers`: texts that are read from the corpus in
Parquet, with progress reports, compared with the same texts from memory, in lists of the same length. The trainer only
counts words here (its vocabulary has room for bytes alone), since the speed of merging does not depend on the source of
the texts.

The speed of curation with datatrove's rules, with all statistics, compared with the rules alone, both in one process.

Documents per CPU second whose MinHash signatures are computed and written, by the corpus engine and by datatrove;
datatrove processes a small part of the documents, since it takes a hundred times as long.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "true"  # the trainer uses all cores, as in the engine

from tokenizers import pre_tokenizers, trainers

from baton.tasks.core.manifest import write_manifest
from baton.tasks.data.curate import Curation
from baton.tasks.data.curate_spec import CurateStep, NearDuplicatesStep
from baton.tasks.data.curation_tally import Tally
from baton.tasks.data.documents import Document, document, documents_in, row_groups
from baton.tasks.data.near_duplicates import NearWriter
from baton.tasks.data.tokenizer import sample_of, untrained
from tests.benchmarks.harness import median_ratio, report, side_by_side
from tests.benchmarks.tokenize import write_corpus
from tests.data.by_hand import new_job

ALIKE = 1_000  # characters of a document for MinHash: one or two paragraphs of a web page
DATATROVES = 200  # documents that datatrove processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=24.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), arguments.megabytes, arguments.rounds)


def compare(folder: Path, megabytes: float, rounds: int) -> None:
    corpus = folder / "corpus"
    corpus.mkdir()
    write_corpus(corpus, megabytes)
    lists = [[item.text for item in documents_in(group.read())] for group in row_groups(corpus, "train")]
    size = sum(len(text.encode()) for texts in lists for text in texts)
    write_manifest(corpus, "corpus", {"bytes": size, "documents": sum(map(len, lists))})
    job = new_job(folder / "job", "tokenizer", {"vocab_size": 260}, corpus=corpus)

    def trainer() -> trainers.BpeTrainer:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False)

    curated = compare_curation([text for texts in lists for text in texts], rounds)
    texts_alike = [text[:ALIKE] for texts in lists for text in texts]
    minhash, theirs = compare_minhash(folder, texts_alike)
    contenders = {
        "engine": lambda: untrained("llama3").train_from_iterator(sample_of(job, corpus, 1e6), trainer()),
        "library": lambda: untrained("llama3").train_from_iterator(iter(lists), trainer()),
    }
    side_by_side(contenders, 1)  # warm up the caches
    times = side_by_side(contenders, rounds)
    ratio = median_ratio(times["library"], times["engine"])
    speed = {name: size / 1e6 / statistics.median(values) for name, values in times.items()}
    report(
        "data",
        [
            ("text", f"{size / 1e6:.1f} MB, {sum(map(len, lists))} documents, {rounds} rounds"),
            ("tokenizers' trainer alone", f"{speed['library']:.2f} MB/s"),
            ("fed by the engine", f"{speed['engine']:.2f} MB/s"),
            ("engine / library", f"{ratio:.2f}  (target: at least 0.95)"),
            ("curation / datatrove's rules alone", f"{curated:.2f}  (target: at least 0.95)"),
            ("MinHash signatures", f"{minhash:,.0f} documents by CPU-second  (target: at least 10,000)"),
            ("datatrove's MinHash signatures", f"{theirs:,.0f} documents by CPU-second"),
        ],
        {
            "tokenizer_fed_over_library": ratio,
            "tokenizer_fed_mb_per_s": speed["engine"],
            "tokenizer_library_mb_per_s": speed["library"],
            "curation_over_datatrove": curated,
            "minhash_documents_per_cpu_s": minhash,
            "minhash_datatrove_documents_per_cpu_s": theirs,
        },
    )


def compare_minhash(folder: Path, texts: Sequence[str]) -> tuple[float, float]:
    """Compare the documents per CPU second of the engine and of datatrove."""
    from datatrove.data import Document as Theirs
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
    from datatrove.utils.hashing import HashConfig

    items = [document(f"{number}", text) for number, text in enumerate(texts)]

    def signed(items: Sequence[Document]) -> None:
        writer = NearWriter(folder, NearDuplicatesStep())
        for item in items:
            writer.add(item)
        writer.close()

    def signed_by_datatrove(items: Sequence[Document]) -> None:
        # 14 bands of 8 values of 5-grams are the defaults of datatrove and of the engine. datatrove's xxhash code does
        # not work with xxhash 4
        config = MinhashConfig(hash_config=HashConfig(hash_fc="sha1"))
        step = MinhashDedupSignature(str(folder / "signatures"), config)
        step.run((Theirs(text=item.text, id=item.id) for item in items), 0, 1)

    def speed(work: Callable[[Sequence[Document]], None], items: Sequence[Document]) -> float:
        work(items[:8])  # load the libraries
        began = time.process_time()
        work(items)
        return len(items) / (time.process_time() - began)

    return speed(signed, items), speed(signed_by_datatrove, items[:DATATROVES])


def compare_curation(texts: list[str], rounds: int, megabytes: float = 1.0) -> float:
    """Compare the speed of curation with that of the rules alone."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter

    chosen, size = [], 0
    for text in texts:
        if size < megabytes * 1e6:
            chosen.append(text)
            size += len(text)
    items = [document(f"{number}", text) for number, text in enumerate(chosen)]
    rules = ["gopher", "repetition", "fineweb"]
    curation = Curation([CurateStep.model_validate({"quality": {"rules": rules}})], Path())
    filters = [GopherQualityFilter(), GopherRepetitionFilter(), FineWebQualityFilter()]

    def alone() -> int:
        theirs = [Document(text=item.text, id=item.id) for item in items]
        return sum(all(kept(of.filter(item)) for of in filters) for item in theirs)

    def kept(found: bool | tuple[bool, str]) -> bool:
        return found if isinstance(found, bool) else found[0]

    def counted() -> int:
        tally = Tally()
        return sum(curation.apply(item, None, tally) is not None for item in items)

    assert alone() == counted()
    times = side_by_side({"alone": alone, "counted": counted}, rounds)
    return median_ratio(times["alone"], times["counted"])


if __name__ == "__main__":
    main()
