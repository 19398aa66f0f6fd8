"""The engine that finds the documents of a source that no known corpus has.

In: "known.0", "known.1", …, oldest first. Out: a corpus of the new documents, and `changes.json` with the changes to
the others (tasks/data/changes.py). If nothing is new, the corpus is empty.

An edited document stays in the split of its previous text, so that a model is never evaluated on text it was trained
on; others are split by content as usual. Known documents are only read and hashed. New documents are kept on disk until
the whole source was read, since only then it is known which of them are edits.

Facts: those of the corpus engine, for the new documents only (`empty` and `invalid_utf8`: of the whole source);
`edited` counts the edits among them; `renamed` and `deleted` count the changes to known documents since the newest
known corpus.
"""

import shutil
import time
from collections.abc import Iterator

from tasks.data.assemble import finish, no_documents
from tasks.data.changes import Changes, Known
from tasks.data.documents import SPLITS, SplitWriter, document_id, read_documents, split_of
from tasks.data.scan import Counts, valid_document
from tasks.data.source_spec import AnySource
from tasks.data.sources import Raw, read_source
from tasks.data.spec import CorpusSpec
from tasks.job import Job, main
from tasks.manifest import remove

PROGRESS_INTERVAL_S = 0.5


def work(job: Job) -> None:
    spec = job.spec(CorpusSpec)
    known = Known()
    for index in range(len(job.inputs)):
        known.add(job.input(f"known.{index}"))
    for directory in (job.output, job.work):
        remove(directory)  # a partial earlier attempt cannot be continued
    job.output.mkdir(parents=True)
    counts = Counts()
    changes = _compare(job, spec, known, counts)
    # of several names the first counts; an edit that was reverted is not a new document
    predecessor = {item.after: item.before for item in reversed(changes.edited) if item.after not in known.splits}
    writers = {split: SplitWriter(job.output, split) for split in SPLITS}
    for item in read_documents(job.work, "train"):
        before = predecessor.get(item.id)
        writers[known.splits[before] if before else split_of(item.id, spec.held_out)].add(item)
    for writer in writers.values():
        writer.close()
    changes.write(job.output)
    finish(
        job,
        writers,
        counts,
        edited=len(predecessor),
        renamed=len(changes.renamed),
        deleted=len(changes.deleted),
    )
    shutil.rmtree(job.work)


def _compare(job: Job, spec: CorpusSpec, known: Known, counts: Counts) -> Changes:
    """Read the whole source and write new documents to work/. Raises StageError if the source is empty."""
    unmoved: set[str] = set()
    found: dict[str, str] = {}
    added: set[str] = set()
    pending = SplitWriter(job.work, "train")
    for raw in _read(job, spec.source):
        identity = document_id(raw.text)
        if known.names.get(raw.source) == identity:
            unmoved.add(identity)
            continue
        if identity in added:
            counts.duplicates += 1
        elif identity not in known.splits:
            item = valid_document(raw, counts)
            if item is None:
                continue
            added.add(identity)
            pending.add(item)
        found[raw.source] = identity
    pending.close()
    if not unmoved and not found:
        more = f". {len(known.splits)} of its documents are known: is its folder mounted?" if known.splits else ""
        raise no_documents(spec, counts, more)
    return known.compare(unmoved, found)


def _read(job: Job, source: AnySource) -> Iterator[Raw]:
    """The documents of a source; reports progress."""
    shown = time.monotonic()
    for number, raw in enumerate(read_source(source), start=1):
        if time.monotonic() - shown > PROGRESS_INTERVAL_S:
            shown = time.monotonic()
            job.progress(100 * raw.done, 100, "%", documents=f"{number:,}")
        yield raw


if __name__ == "__main__":
    main(work)
