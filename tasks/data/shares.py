"""A share of a stage's partitions, computed by one of several pods and stored for the stage's main pod.

Partitions that are already in storage, from a killed pod or another corpus, are neither recomputed nor downloaded.

Out: `partitions.json`, the keys of the share's partitions. Facts: `partitions`, their number.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from baton.infra.storage.durable import write_json
from baton.tasks.core.job import Job
from baton.tasks.data.machines import Rounds, Span
from baton.tasks.data.rounds import Work, dealt, workers
from baton.tasks.data.spec import ShareSpec
from baton.tasks.data.stored_folders import stored


class Item(Protocol):
    """An item of a round, which makes a folder."""

    @property
    def folder(self) -> Path: ...


T = TypeVar("T")
M = TypeVar("M", bound=Item)


def items_of_share(share: ShareSpec, items: Sequence[T], sizes: Sequence[int]) -> list[tuple[T, int]]:
    """The share's items, with their sizes."""
    shares = zip(items, sizes, dealt(sizes, share.machines), strict=True)
    return [(item, size) for item, size, machine in shares if machine == share.number]


def make_share(job: Job, work: Work[M], mine: Sequence[tuple[M, int]], concurrency: int | None) -> None:
    """Work on a share's items, and seal the output. Raises StorageError."""
    storage = stored(job)
    missing = [(item, size) for item, size in mine if not (storage and storage.has(item.folder.name))]
    to_make = [item for item, _ in missing]
    with workers(concurrency) as pool:
        rounds = Rounds(job, {job.stage: Span(0, 100, "partitions")}, pool)
        rounds.run(job.stage, work, to_make, [item.folder for item in to_make], [size for _, size in missing])
    rounds.record()
    write_json(job.output / "partitions.json", [item.folder.name for item, _ in mine])
    job.finish(partitions=len(mine))
