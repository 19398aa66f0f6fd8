"""The engine with which a pod tokenizes its share of a corpus' files (shares.py).

The shards engine, whose pod runs after those of all shares, finds the parts in storage (stored_folders.py) and
tokenizes the missing ones itself.
"""

import os

from tasks.data.encode import encode
from tasks.data.prefixes import prefixes
from tasks.data.shards import PARTS, encode_items, encoder_of
from tasks.data.shares import make_share
from tasks.data.spec import ShareSpec
from tasks.job import Job, main
from tasks.manifest import read_manifest, remove


def work(job: Job) -> None:
    share = job.spec(ShareSpec)
    job.empty_output()
    corpus = job.input("corpus")
    items, sizes = encode_items(job, prefixes(corpus, read_manifest(corpus)), encoder_of(job))
    make_share(job, share, encode, items, sizes, None)
    remove(job.directory / PARTS)


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for each worker, which inherits it
    main(work)
