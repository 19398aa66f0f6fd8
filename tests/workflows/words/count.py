"""Count the words of a corpus: `python -m tasks.words.count JOB_DIR`, with the input "corpus"."""

import json

from baton.tasks.core.job import Job, main
from baton.tasks.data.documents import read_documents
from baton.tasks.words.spec import WordsSpec


def work(job: Job) -> None:
    shortest = job.spec(WordsSpec).shortest
    documents = read_documents(job.input("corpus"), "train")
    words = sum(len(word) >= shortest for document in documents for word in document.text.split())
    job.empty_output()
    (job.output / "words.json").write_text(json.dumps(words))
    job.finish(words=words)


if __name__ == "__main__":
    main(work)
