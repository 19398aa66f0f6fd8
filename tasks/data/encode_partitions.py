"""The engine with which a pod tokenizes its share of a corpus (shares.py): some of its files, without fetching others;
or, if there are too few files to share them evenly, some parts of the files.

The shards engine, whose pod runs after those of all shares, finds the parts in storage (stored_folders.py) and
tokenizes the missing ones itself, for which it fetches their files.
"""

import os
from dataclasses import replace

from baton.infra.storage.durable import remove
from baton.tasks.core.job import Input, Job, main
from baton.tasks.core.stored import manifest_at
from baton.tasks.data.encode import encode
from baton.tasks.data.shards import PARTS, encode_items, encoder_of
from baton.tasks.data.shares import items_of_share, make_share
from baton.tasks.data.spec import ShareSpec

FILES = 4  # for each machine; with fewer, parts of files are shared


def work(job: Job) -> None:
    share = job.spec(ShareSpec)
    job.empty_output()
    corpus = Input(**job.inputs["corpus"])
    about = manifest_at(corpus.path or corpus.place)
    names = sorted(name for name in about.files if name.endswith(".parquet"))
    by_file = len(names) >= FILES * share.machines
    if by_file:
        names = [name for name, _ in items_of_share(share, names, [about.files[name].size for name in names])]
    corpus = replace(corpus, path=str(replace(corpus, files=names).local()))
    items = encode_items(job, corpus, about, names, encoder_of(job, corpus, about, names))
    if not by_file:
        items = items_of_share(share, [item for item, _ in items], [size for _, size in items])
    make_share(job, encode, items, None)
    remove(job.directory / PARTS)


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for each worker, which inherits it
    main(work)
