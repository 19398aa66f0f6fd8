"""The engine that reads one source, or several with names, into a corpus.

One pass, with few documents in memory at a time. Documents that are not UTF-8 or only white space are counted and
skipped; of duplicates the first is kept. Deduplication stores 16 bytes per document (about 120 in memory: 10 million
documents take 1.2 GB).

With named sources, each has its own files in the train split, which pretraining blends by weight. The held-out split
is one, with the sources' documents mixed evenly, so that any first part of it represents all of them. A document's
`source` begins with its source's name: "web/pages.jsonl#17".

With `curate`, each document passes the steps of the curation, on all cores, before duplicates are dropped, and
`record/curation.json` has what each step did to each source.

Facts: `documents` and `bytes` are the train split's; `held_out_documents` and `held_out_bytes` the held-out split's;
`duplicates`, `empty` and `invalid_utf8` count the skipped documents; `sources` has documents and bytes of each named
source; `curation` how many documents each step saw, dropped and changed; `broken` counts the files that were skipped
as broken, which `record/broken.json` lists.
"""

import heapq
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from infra.durable import write_json
from infra.text import words
from tasks.data.curate_pool import curating
from tasks.data.curation_tally import TALLY, Tally
from tasks.data.documents import SPLITS, Document, Split, SplitWriter, document, read_documents, split_of
from tasks.data.source_spec import AnySource
from tasks.data.sources import Raw, read_source
from tasks.data.spec import CorpusSpec
from tasks.job import Job, StageError, main
from tasks.manifest import remove

PROGRESS_INTERVAL_S = 0.5
SAMPLES = 8  # documents shown in the report
SAMPLE_CHARACTERS = 600


@dataclass
class Counts:
    """Numbers of skipped documents."""

    duplicates: int = 0
    empty: int = 0
    invalid_utf8: int = 0


@dataclass(frozen=True)
class Size:
    """Of a split."""

    documents: int
    bytes: int


def work(job: Job) -> None:
    spec = job.spec(CorpusSpec)
    job.empty_output()
    remove(job.work)  # a partial earlier attempt cannot be continued
    if problems := spec.problems():
        raise StageError("\n".join(map(str, problems)))
    counts, tally = Counts(), Tally()
    broken: list[str] = []
    writers = {name: _writers(job, name) for name in spec.by_name()}
    for name, item in _documents(job, spec, counts, tally, broken):
        writers[name][split_of(item.id, spec.held_out)].add(item)
    for of_source in writers.values():
        for writer in of_source.values():
            writer.close()
    tally.check(spec.curate)
    _refuse_empty(spec, counts, writers)
    more: dict[str, Any] = {}
    if spec.curate:
        (job.record / TALLY).write_text(tally.model_dump_json(indent=1))
        more["curation"] = tally.facts()
    if broken:
        write_json(job.record / "broken.json", broken)
        more["broken"] = len(broken)
    if None in writers:
        finish(job, writers[None], counts, **more)
    else:
        _finish_named(job, {str(name): of_source for name, of_source in writers.items()}, counts, **more)
    remove(job.work)


def _writers(job: Job, name: str | None) -> dict[Split, SplitWriter]:
    """A source's writers. Held-out documents of named sources are mixed in the end, and until then in work/."""
    if name is None:
        return {split: SplitWriter(job.output, split) for split in SPLITS}
    return {"train": SplitWriter(job.output, "train", name), "held_out": SplitWriter(_folder(job, name), "held_out")}


def _folder(job: Job, name: str) -> Path:
    path = job.work / name
    path.mkdir(exist_ok=True)
    return path


def _finish_named(job: Job, writers: dict[str, dict[Split, SplitWriter]], counts: Counts, **more: Any) -> None:
    """Mix the sources' held-out documents, each source's evenly spread over all of them, and seal the corpus."""
    streams = [
        _spread(name, read_documents(_folder(job, name), "held_out"), of_source["held_out"].documents)
        for name, of_source in writers.items()
    ]
    held_out = SplitWriter(job.output, "held_out")
    for _, _, item in heapq.merge(*streams, key=lambda entry: entry[:2]):
        held_out.add(item)
    held_out.close()
    train = [of_source["train"] for of_source in writers.values()]
    whole = Size(sum(part.documents for part in train), sum(part.bytes for part in train))
    sources = {
        name: {
            "documents": of_source["train"].documents,
            "bytes": of_source["train"].bytes,
            "held_out_documents": of_source["held_out"].documents,
            "held_out_bytes": of_source["held_out"].bytes,
        }
        for name, of_source in writers.items()
    }
    finish(job, {"train": whole, "held_out": held_out}, counts, sources=sources, **more)


def _spread(name: str, documents: Iterator[Document], count: int) -> Iterator[tuple[float, str, Document]]:
    """The documents of a source with their places in (0, 1) when spread evenly."""
    for number, item in enumerate(documents):
        yield (number + 0.5) / count, name, item


def finish(job: Job, splits: Mapping[Split, SplitWriter | Size], counts: Counts, **more: Any) -> None:
    """Seal a corpus that is written, with the facts of every corpus and some `more`."""
    train, held_out = splits["train"], splits["held_out"]
    write_samples(job)
    job.finish(
        documents=train.documents,
        held_out_documents=held_out.documents,
        bytes=train.bytes,
        held_out_bytes=held_out.bytes,
        **asdict(counts),
        **more,
    )


def _documents(
    job: Job, spec: CorpusSpec, counts: Counts, tally: Tally, broken: list[str]
) -> Iterator[tuple[str | None, Document]]:
    """The sources' documents with their source's name, curated, without invalid, empty and duplicate ones, which are
    counted."""
    seen: set[bytes] = set()
    with curating(spec.curate, job.work / "functions") as curate:
        for name, source in spec.by_name().items():
            read = read_with_progress(job, source, name, broken)
            valid = (item for raw in read if (item := valid_document(raw, counts)))
            for item in curate(valid, name, tally):
                key = bytes.fromhex(item.id[:32])
                if key in seen:
                    counts.duplicates += 1
                    continue
                seen.add(key)
                yield name, item


def read_with_progress(
    job: Job, source: AnySource, name: str | None = None, broken: list[str] | None = None
) -> Iterator[Raw]:
    """The documents of a source, with its name, if any, before theirs; reports progress. Adds what is wrong with each
    skipped file to `broken`."""
    shown = time.monotonic()
    title = {"source": name} if name else {}
    for number, raw in enumerate(read_source(source, broken), start=1):
        if time.monotonic() - shown > PROGRESS_INTERVAL_S:
            shown = time.monotonic()
            job.progress(100 * raw.done, 100, "%", documents=f"{number:,}", **title)
        yield replace(raw, source=f"{name}/{raw.source}") if name else raw


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


def _refuse_empty(spec: CorpusSpec, counts: Counts, writers: dict[str | None, dict[Split, SplitWriter]]) -> None:
    splits = {split: sum(of_source[split].documents for of_source in writers.values()) for split in SPLITS}
    found = sum(splits.values())
    if not found:
        raise no_documents(spec, counts)
    for split, number in splits.items():
        if not number:
            way_out = "smaller" if split == "train" else "larger"
            raise StageError(
                f"with held_out={spec.held_out}, none of the {found} documents is in the {words(split)} split; "
                f"add documents or use a {way_out} held_out"
            )
    for name, of_source in writers.items():
        if not of_source["train"].documents:
            raise StageError(
                f"sources.{name}: none of its documents is in the train split: they are empty, not UTF-8, in another "
                "source too, or held out. Add documents, or remove the source"
            )


def no_documents(spec: CorpusSpec, counts: Counts, more: str = "") -> StageError:
    kinds = " and ".join(dict.fromkeys(source.kind for source in spec.by_name().values()))
    have = "sources have" if spec.sources else "source has"
    return StageError(
        f"the {kinds} {have} no documents ({counts.empty} empty, {counts.invalid_utf8} not UTF-8); "
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
