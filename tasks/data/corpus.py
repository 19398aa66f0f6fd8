"""The engine that reads a source into a corpus.

One pass, with one document in memory at a time. Documents that are not UTF-8 or only white space are counted and
skipped; of duplicates the first is kept. Deduplication stores 16 bytes per document (about 70 in memory: 10 million
documents take 0.7 GB).

Facts: `documents` and `bytes` are the train split's; `held_out_documents` and `held_out_bytes` the held-out split's;
`duplicates`, `empty` and `invalid_utf8` count the skipped documents.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice

from infra.durable import write_json
from tasks.data.documents import SPLITS, Document, Split, SplitWriter, document, read_documents, split_of
from tasks.data.sources import Raw, read_source
from tasks.data.spec import CorpusSpec
from tasks.job import Job, StageError, main

PROGRESS_INTERVAL_S = 0.5
SAMPLES = 8  # documents shown in the report
SAMPLE_CHARACTERS = 600


@dataclass
class Counts:
    """Numbers of skipped documents."""

    duplicates: int = 0
    empty: int = 0
    invalid_utf8: int = 0


def work(job: Job) -> None:
    spec = job.spec(CorpusSpec)
    job.empty_output()
    counts = Counts()
    writers = {split: SplitWriter(job.output, split) for split in SPLITS}
    for item in _documents(job, spec, counts):
        writers[split_of(item.id, spec.held_out)].add(item)
    for writer in writers.values():
        writer.close()
    _refuse_empty(spec, counts, writers["train"], writers["held_out"])
    finish(job, writers, counts)


def finish(job: Job, writers: dict[Split, SplitWriter], counts: Counts, **more: int) -> None:
    """Seal a corpus that is written, with the facts of every corpus and some `more`."""
    train, held_out = writers["train"], writers["held_out"]
    write_samples(job)
    job.finish(
        documents=train.documents,
        held_out_documents=held_out.documents,
        bytes=train.bytes,
        held_out_bytes=held_out.bytes,
        **asdict(counts),
        **more,
    )


def _documents(job: Job, spec: CorpusSpec, counts: Counts) -> Iterator[Document]:
    """The source's documents, without invalid, empty and duplicate ones, which are counted."""
    seen: set[bytes] = set()
    for raw in read_with_progress(job, spec):
        item = valid_document(raw, counts)
        if item is None:
            continue
        key = bytes.fromhex(item.id[:32])
        if key in seen:
            counts.duplicates += 1
            continue
        seen.add(key)
        yield item


def read_with_progress(job: Job, spec: CorpusSpec) -> Iterator[Raw]:
    """The source's documents; reports progress."""
    shown = time.monotonic()
    for number, raw in enumerate(read_source(spec.source), start=1):
        if time.monotonic() - shown > PROGRESS_INTERVAL_S:
            shown = time.monotonic()
            job.progress(100 * raw.done, 100, "%", documents=f"{number:,}")
        yield raw


def valid_document(raw: Raw, counts: Counts) -> Document | None:
    """The document; None, and counted, if it is not UTF-8 or only white space."""
    try:
        item = document(raw.source, raw.text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        counts.invalid_utf8 += 1
        return None
    if not item.text.strip():
        counts.empty += 1
        return None
    return item


def _refuse_empty(spec: CorpusSpec, counts: Counts, train: SplitWriter, held_out: SplitWriter) -> None:
    found = train.documents + held_out.documents
    if not found:
        raise no_documents(spec, counts)
    for split, writer in (("held-out", held_out), ("train", train)):
        if not writer.documents:
            raise StageError(
                f"with held_out={spec.held_out}, none of the {found} documents is in the {split} split; "
                f"add documents or use a {'larger' if writer is held_out else 'smaller'} held_out"
            )


def no_documents(spec: CorpusSpec, counts: Counts, more: str = "") -> StageError:
    return StageError(
        f"the {spec.source.kind} source has no documents ({counts.empty} empty, {counts.invalid_utf8} not UTF-8); "
        f"choose another path or text_field{more}"
    )


def write_samples(job: Job) -> None:
    """Write the first characters of a few held-out documents, for the report."""
    samples = [
        {"source": item.source, "text": item.text[:SAMPLE_CHARACTERS]}
        for item in islice(read_documents(job.output, "held_out"), SAMPLES)
    ]
    write_json(job.record / "samples.json", samples)


if __name__ == "__main__":
    main(work)
