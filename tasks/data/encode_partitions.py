"""The engine with which a pod tokenizes its share of a corpus' files (shares.py), of which it fetches no others.

The shards engine, whose pod runs after those of all shares, finds the parts in storage (stored_folders.py) and
tokenizes the missing ones itself.
"""

import os
from dataclasses import replace

from tasks.data.encode import encode
from tasks.data.shards import PARTS, encode_items, encoder_of
from tasks.data.shares import make_share, of_share
from tasks.data.spec import ShareSpec
from tasks.job import Input, Job, main
from tasks.manifest import remove
from tasks.stored import manifest_at


def work(job: Job) -> None:
    share = job.spec(ShareSpec)
    job.empty_output()
    corpus = Input(**job.inputs["corpus"])
    sizes = {name: file.size for name, file in manifest_at(corpus.place or corpus.path).files.items()}
    names = sorted(name for name in sizes if name.endswith(".parquet"))
    mine = [name for name, _ in of_share(share, names, [sizes[name] for name in names])]
    folder = replace(corpus, files=mine).local()
    items = encode_items(job, folder, [folder / name for name in mine], encoder_of(job, folder)) if mine else []
    make_share(job, encode, items, None)
    remove(job.directory / PARTS)


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for each worker, which inherits it
    main(work)
