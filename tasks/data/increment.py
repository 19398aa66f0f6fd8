"""The engine that finds what is new in a source, after the corpora that are known.

In: "known.0", "known.1", …, oldest first. Out: a corpus of the documents that none of them has, and
`changes.json`, what became of the others (tasks/data/changes.py). Nothing new is a result too: a
corpus without documents.

An edited document stays in the split of its earlier text, so that nobody is examined on what they
learned; others are split by content as ever. What is known is read and hashed, no more. New documents
wait on disk until the whole source was seen, since only then is it clear which of them are edits.

Facts: those of the corpus engine, of the new documents alone (`empty`, `invalid_utf8`: of the whole
source); `edited` counts those of them that are edits; `renamed`, `deleted` count what happened to known
ones since the newest of the known corpora.
"""

import shutil

from tasks.data.changes import Changes, Known
from tasks.data.corpus import Counts, finish, no_documents, reading, sound_document
from tasks.data.documents import SPLITS, SplitWriter, document_id, read_documents, split_of
from tasks.data.spec import CorpusSpec
from tasks.job import Job, main
from tasks.manifest import remove


def work(job: Job) -> None:
    spec = job.spec(CorpusSpec)
    known = Known()
    for index in range(len(job.inputs)):
        known.add(job.input(f"known.{index}"))
    for directory in (job.output, job.work):
        remove(directory)  # half of an earlier attempt is worth nothing
    job.output.mkdir(parents=True)
    counts = Counts()
    changes = _compare(job, spec, known, counts)
    # the first of its names tells; an edit that was taken back is no new document
    predecessor = {each.after: each.before for each in reversed(changes.edited) if each.after not in known.splits}
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
    """Read the source through, and keep what is new in work/. Raises StageError when there is nothing at all."""
    unmoved: set[str] = set()
    found: dict[str, str] = {}
    added: set[str] = set()
    waiting = SplitWriter(job.work, "train")
    for raw in reading(job, spec):
        identity = document_id(raw.text)
        if known.names.get(raw.source) == identity:
            unmoved.add(identity)
            continue
        if identity in added:
            counts.duplicates += 1
        elif identity not in known.splits:
            item = sound_document(raw, counts)
            if item is None:
                continue
            added.add(identity)
            waiting.add(item)
        found[raw.source] = identity
    waiting.close()
    if not unmoved and not found:
        more = f". {len(known.splits)} documents of it are known: is its folder mounted?" if known.splits else ""
        raise no_documents(spec, counts, more)
    return known.compare(unmoved, found)


if __name__ == "__main__":
    main(work)
