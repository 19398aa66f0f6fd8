"""The engine that finds the documents of some sources that no known corpus has.

In: "known.0", "known.1", …, oldest first; "against.0", …, as for a corpus. Out: a corpus of the new documents, made in
the rounds of the corpus engine (corpus.py) with one more that compares the scanned partitions with the known corpora
(known_documents.py); `changes.json` with the changes to the others (source_changes.py); `gone.arrow` and `gone.json`
with the known documents that the source has lost (gone.py). If nothing is new, the corpus is empty. A partition whose
files have not changed is not read again while its scan is kept. Of the known corpora, only the newest is read while the
blocks of the others' names are kept (known_blocks.py).

An edited document stays in the split of its previous text, so that a model is never evaluated on text it was trained
on; others are split by content as usual. Among near duplicates, known documents come before all new ones.

The facts are those of the corpus engine, for the new documents only. `duplicates`, `empty`, `invalid_utf8`, `broken`
and `curation` cover the partitions read since the newest known corpus; `edited` counts the edits among the new
documents; `renamed` and `deleted` count the changes to known documents since the newest known corpus; `gone` counts the
documents of all known corpora that the source no longer has; `known_digest` is a key of these corpora.
"""

from baton.tasks.core.job import Job, main
from baton.tasks.data.corpus import make_corpus


def work(job: Job) -> None:
    make_corpus(job, job.inputs_of("known"))


if __name__ == "__main__":
    main(work)
