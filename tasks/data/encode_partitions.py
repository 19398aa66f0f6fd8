"""The engine with which a pod tokenizes its share of a corpus (shares.py): some of its files, and it fetches no others;
or, where there are too few files to share them evenly, some parts of the files.

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

FILES = 4  # of each machine, at least, to share them


def work(job: Job) -> None:
    share = job.spec(ShareSpec)
    job.empty_output()
    corpus = Input(**job.inputs["corpus"])
    sizes = {name: file.size for name, file in manifest_at(corpus.path or corpus.place).files.items()}
    names = sorted(name for name in sizes if name.endswith(".parquet"))
    by_file = len(names) >= FILES * share.machines
    if by_file:
        names = [name for name, _ in of_share(share, names, [sizes[name] for name in names])]
    folder = replace(corpus, files=names).local()
    items = encode_items(job, folder, [folder / name for name in names], encoder_of(job, folder))
    if not by_file:
        items = of_share(share, [item for item, _ in items], [size for _, size in items])
    make_share(job, encode, items, None)
    remove(job.directory / PARTS)


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for each worker, which inherits it
    main(work)
