"""The engine that merges several corpora, without the documents that were deleted from the source.

In: "corpora.0", "corpora.1", … and "newest", an increment whose `gone.arrow` lists the documents that are gone from
the source. Documents keep their order and split; of duplicates the first is kept. With `train: false` only the held-out
split is read and merged.

The ids of a million documents are in memory at a time: those in one range of ids, from all corpora. So the ids are read
once for every million documents, and the texts once.

The facts are those of the corpus engine; `deleted` counts the documents skipped because they are gone.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from baton.tasks.core.job import Job, main
from baton.tasks.data.assemble import finish
from baton.tasks.data.documents import (
    SPLITS,
    Split,
    SplitWriter,
    documents_in,
    have_metadata,
    name_batches,
    split_files,
    stem_of,
)
from baton.tasks.data.gone import GoneDocuments, Mask
from baton.tasks.data.scan import Counts
from baton.tasks.data.spec import GatherSpec

IDS = 1_000_000  # in memory, about


def work(job: Job) -> None:
    spec = job.spec(GatherSpec)
    gone = GoneDocuments.read(job.input("newest"))
    corpora = [(corpus.digest, corpus.local()) for corpus in job.inputs_of("corpora")]
    job.empty_output()
    files: list[tuple[Split, Path]] = []
    present: list[Mask] = []  # for each file, the documents that are in the source
    for split in SPLITS if spec.train else ("held_out",):
        for digest, corpus in corpora:
            for part, paths in groupby(split_files(corpus, split), stem_of):
                of_part = [*paths]
                files += [(split, path) for path in of_part]
                present += gone.present((digest, part), [pq.read_metadata(path).num_rows for path in of_part])
    deleted = sum(int(np.count_nonzero(~mask)) for mask in present)
    keep, duplicates = to_keep(
        [path for _, path in files], present, lambda done, total: job.progress(done, total, "ranges of ids")
    )
    metadata = have_metadata(path for _, path in files)
    writers = {split: SplitWriter(job.output, split, metadata=metadata) for split in SPLITS}
    for number, ((split, path), mask) in enumerate(zip(files, keep, strict=True)):
        job.progress(number, len(files), "files", split=split)
        for table in _kept(path, mask):
            for item in documents_in(table):
                writers[split].add(item)
    for writer in writers.values():
        writer.close()
    finish(job, writers, Counts(duplicates=duplicates), deleted=deleted)


def to_keep(
    files: Sequence[Path], present: Sequence[Mask], show: Callable[[int, int], None], ids: int = IDS
) -> tuple[list[Mask], int]:
    """Return for each document of each file whether it is the first `present` one with its text; and the number of
    `present` ones that are not. About `ids` ids are in memory at a time. Calls `show` with the number of ranges that
    are done, and of all."""
    starts = np.cumsum([0, *map(len, present)])
    candidates = np.concatenate([np.empty(0, bool), *present])
    keep, duplicates = np.zeros(starts[-1], bool), 0
    cut = list(ranges(-(-int(starts[-1]) // ids)))
    for number, (low, high) in enumerate(cut):
        show(number, len(cut))
        texts, places = [np.empty(0, "S64")], [np.empty(0, np.int64)]
        for start, path in zip(starts, files, strict=False):
            for batch in name_batches([path]):
                between = pc.and_(pc.greater_equal(batch["id"], low), pc.less(batch["id"], high))
                mask = candidates[start : start + len(batch)] & between.to_numpy(zero_copy_only=False)
                places.append(start + np.flatnonzero(mask))
                texts.append(_digests(batch["id"].filter(pa.array(mask))))
                start += len(batch)
        in_range = np.concatenate(texts)
        _, first = np.unique(in_range, return_index=True)
        duplicates += len(in_range) - len(first)
        keep[np.concatenate(places)[first]] = True
    return np.split(keep, starts[1:])[:-1], duplicates


def _digests(ids: pa.Array) -> npt.NDArray[np.bytes_]:
    """The ids, which have 64 characters each, without Python objects. The array must not be a slice."""
    return np.frombuffer(ids.buffers()[2] or b"", "S64", len(ids))


def ranges(number: int) -> Iterator[tuple[str, str]]:
    """Cut the ids, which are digests, into equal ranges, each from the first id up to, not including, the second."""
    ends = [f"{256**3 * index // max(1, number):06x}" for index in range(1, number)]
    yield from zip(["", *ends], [*ends, "g"], strict=True)


def _kept(path: Path, mask: Mask) -> Iterator[pa.Table]:
    """The documents to keep of a file, a row group at a time."""
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for group in range(file.num_row_groups):
            rows, mask = np.split(mask, [file.metadata.row_group(group).num_rows])
            if rows.any():
                yield file.read_row_group(group, use_threads=False).filter(pa.array(rows))


if __name__ == "__main__":
    main(work)
