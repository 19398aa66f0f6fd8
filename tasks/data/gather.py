"""The engine that merges several corpora, without the documents that were deleted from the source.

In: "corpora.0", "corpora.1", … and "newest", an increment whose `changes.json` lists the documents that are gone from
the source. Documents keep their order and split; of duplicates the first is kept. With `train: false` only the held-out
split is merged.

Facts: those of the corpus engine; `deleted` counts the documents skipped because they are gone.
"""

from tasks.data.assemble import finish
from tasks.data.documents import SPLITS, SplitWriter, have_metadata, read_documents
from tasks.data.scan import Counts
from tasks.data.source_changes import Changes
from tasks.data.spec import GatherSpec
from tasks.job import Job, main


def work(job: Job) -> None:
    spec = job.spec(GatherSpec)
    gone = set(Changes.read(job.input("newest")).gone)
    corpora = [job.input(f"corpora.{index}") for index in range(len(job.inputs) - 1)]
    job.empty_output()
    seen: set[str] = set()
    counts, deleted = Counts(), 0
    metadata = any(map(have_metadata, corpora))
    writers = {split: SplitWriter(job.output, split, metadata=metadata) for split in SPLITS}
    for split in SPLITS if spec.train else ("held_out",):
        for number, corpus in enumerate(corpora):
            job.progress(number, len(corpora), "corpora", split=split)
            for item in read_documents(corpus, split):
                if item.id in gone:
                    deleted += 1
                elif item.id in seen:
                    counts.duplicates += 1
                else:
                    seen.add(item.id)
                    writers[split].add(item)
        writers[split].close()
    finish(job, writers, counts, deleted=deleted)


if __name__ == "__main__":
    main(work)
