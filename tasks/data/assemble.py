"""Put a corpus together from its written partitions, and seal it."""

import heapq
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from baton.infra.storage.durable import write_json
from baton.infra.text import words
from baton.tasks.core.job import Input, Job, StageError
from baton.tasks.core.manifest import RECORD
from baton.tasks.data.curation_tally import TALLY, Tally
from baton.tasks.data.documents import (
    SPLITS,
    Document,
    Split,
    SplitWriter,
    file_name,
    read_documents,
    split_files,
    stem,
)
from baton.tasks.data.known_documents import SCANS, Found, KnownItem
from baton.tasks.data.partitions import Partition
from baton.tasks.data.readers.raw import Broken, add_broken, broken_text
from baton.tasks.data.scan import Counts, Scanned, Size
from baton.tasks.data.source_changes import CHANGES, GONE, GONE_COUNTS
from baton.tasks.data.source_spec import has_metadata
from baton.tasks.data.spec import CorpusSpec
from baton.tasks.data.write import Written

SAMPLES = 8  # documents shown in the report
SAMPLE_CHARACTERS = 600

Sizes = dict[str | None, dict[Split, Size]]


def assemble(
    job: Job,
    spec: CorpusSpec,
    plan: Sequence[Partition],
    scans: Sequence[Path],
    writes: Sequence[Path],
    known: KnownItem | None,
) -> None:
    """Assemble the output from written partitions. Raises StageError if a split is empty, except in an increment."""
    counts, tally, later, broken = Counts(), Tally(), Tally(), Broken()
    everything, rows, passed = Tally(), 0, 0
    counted = _scans_of(known.corpora[-1]) if known and known.corpora else set[str]()
    sizes: Sizes = {name: {split: Size() for split in SPLITS} for name in spec.by_name()}
    folders: dict[str | None, list[Path]] = {name: [] for name in spec.by_name()}
    for part, scan, folder in zip(plan, scans, writes, strict=True):
        scanned, written = Scanned.read(scan), Written.read(folder)
        everything.add(written.tally)
        rows += scanned.rows
        passed += written.known
        if scan.name not in counted:
            counts.add(scanned.counts)
            counts.duplicates += written.duplicates
            tally.add(scanned.tally)
            later.add(written.tally)
            add_broken(broken, scanned.broken)
        folders[part.source].append(folder)
        for split, size in written.splits.items():
            sizes[part.source][split].add(size)
    tally.add(later)
    everything.check(spec.curate, passed)
    more: dict[str, Any] = {}
    if known:
        if not rows:
            raise no_documents(spec, counts, broken)
        for file in (CHANGES, GONE, GONE_COUNTS):
            shutil.copy(known.folder / file, job.output)
        more |= Found.read(known.folder).model_dump()
    else:
        _refuse_empty(spec, counts, sizes, broken)
    write_json(job.record / SCANS, sorted({scan.name for scan in scans}))
    if spec.curate:
        (job.record / TALLY).write_text(tally.model_dump_json(indent=1))
        more["curation"] = tally.facts()
    if broken:
        write_json(job.record / "broken.json", [str(skipped) for skipped in broken.values()])
        more |= {"broken": len(broken), "broken_records": sum(skipped.records for skipped in broken.values())}
        job.notice(broken_text(broken))
    if counts.invalid_utf8:
        job.notice(
            f"{counts.invalid_utf8:,} documents are not UTF-8, or have NUL characters, and are left out, such as "
            f"{', '.join(counts.invalid)}: convert their files, or remove them"
        )
    for name, written_folders in folders.items():
        _link(written_folders, job.output, "train", name)
    if None in folders:
        _link(folders[None], job.output, "held_out", None)
    else:
        _mix_held_out(job, folders, sizes, any(map(has_metadata, spec.by_name().values())))
        more["sources"] = {str(name): _facts(of_source) for name, of_source in sizes.items()}
    total = {split: Size() for split in SPLITS}
    for of_source in sizes.values():
        for split in SPLITS:
            total[split].add(of_source[split])
    finish(job, total, counts, **more)


def _scans_of(corpus: Input) -> set[str]:
    """The names of the scans that a corpus was assembled from; empty if it has no list of them."""
    name = f"{RECORD}/{SCANS}"
    listed = replace(corpus, files=[name]).local() / name
    return set(json.loads(listed.read_text())) if listed.exists() else set()


def _link(folders: Sequence[Path], output: Path, split: Split, name: str | None) -> None:
    """Link a split's files of several partitions in order, numbered consecutively."""
    paths = chain.from_iterable(split_files(folder, split) for folder in folders)
    for number, path in enumerate(paths):
        os.link(path, output / file_name(stem(split, name), number))


def _mix_held_out(job: Job, folders: Mapping[str | None, Sequence[Path]], sizes: Sizes, metadata: bool) -> None:
    """Write the held-out documents of all sources, with those of each source spread evenly."""
    streams = [
        _spread(
            str(name),
            chain.from_iterable(read_documents(folder, "held_out") for folder in of_source),
            sizes[name]["held_out"].documents,
        )
        for name, of_source in folders.items()
    ]
    held_out = SplitWriter(job.output, "held_out", metadata=metadata)
    for _, _, item in heapq.merge(*streams, key=lambda entry: entry[:2]):
        held_out.add(item)
    held_out.close()


def _spread(name: str, documents: Iterator[Document], count: int) -> Iterator[tuple[float, str, Document]]:
    """The documents of a source with their places in (0, 1) when spread evenly."""
    for number, item in enumerate(documents):
        yield (number + 0.5) / count, name, item


def _facts(sizes: Mapping[Split, Size]) -> dict[str, int]:
    """The facts of a named source."""
    train, held_out = sizes["train"], sizes["held_out"]
    return {
        "documents": train.documents,
        "bytes": train.bytes,
        "held_out_documents": held_out.documents,
        "held_out_bytes": held_out.bytes,
    }


def finish(job: Job, splits: Mapping[Split, SplitWriter | Size], counts: Counts, **more: Any) -> None:
    """Seal a written corpus, with the facts of every corpus and some `more`."""
    train, held_out = splits["train"], splits["held_out"]
    write_samples(job)
    job.finish(
        documents=train.documents,
        held_out_documents=held_out.documents,
        bytes=train.bytes,
        held_out_bytes=held_out.bytes,
        **counts.model_dump(exclude={"invalid"}),
        **more,
    )


def _refuse_empty(spec: CorpusSpec, counts: Counts, sizes: Sizes, broken: Broken) -> None:
    splits = {split: sum(of_source[split].documents for of_source in sizes.values()) for split in SPLITS}
    documents = sum(splits.values())
    if not documents:
        raise no_documents(spec, counts, broken)
    for split, number in splits.items():
        if not number:
            fix = "smaller" if split == "train" else "larger"
            raise StageError(
                f"with held_out={spec.held_out}, none of the {documents} documents is in the {words(split)} split; "
                f"add documents or use a {fix} held_out"
            )
    for name, of_source in sizes.items():
        if not of_source["train"].documents:
            raise StageError(
                f"sources.{name}: none of its documents is in the train split: they are empty, not UTF-8, in another "
                "source too, held out, or dropped by `curate`. Add documents, or remove the source"
            )


def no_documents(spec: CorpusSpec, counts: Counts, broken: Broken) -> StageError:
    kinds = " and ".join(dict.fromkeys(source.kind for source in spec.by_name().values()))
    have = "sources have" if spec.sources else "source has"
    return StageError(
        f"the {kinds} {have} no documents ({counts.empty} empty, {counts.invalid_utf8} not UTF-8 or with NULs); "
        f"choose another path or text_field{f'. What was {broken_text(broken)}' if broken else ''}"
    )


def write_samples(job: Job) -> None:
    """Write the first characters of a few held-out documents, for the report."""
    samples = [
        {"source": item.source, "text": item.text[:SAMPLE_CHARACTERS]}
        for item in islice(read_documents(job.output, "held_out"), SAMPLES)
    ]
    write_json(job.record / "samples.json", samples)
