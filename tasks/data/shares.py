"""A share of a stage's partitions, made by one of several pods and left in storage for the stage's own pod.

Out: `partitions.json`, the keys of the share's partitions. Facts: `partitions`, and their `documents`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from infra.durable import write_json
from tasks.data.machines import Rounds, Span
from tasks.data.rounds import Work, cores, dealt, workers
from tasks.data.spec import ShareSpec
from tasks.job import Job


class Item(Protocol):
    """What makes a folder."""

    @property
    def folder(self) -> Path: ...


T = TypeVar("T", bound=Item)


def make_share(
    job: Job,
    share: ShareSpec,
    work: Work[T],
    items: Sequence[T],
    sizes: Sequence[int],
    concurrency: int | None,
    documents: Callable[[Path], int],
) -> None:
    """Work on those of all `items` that are the share's, and seal the output. `documents`: how many a folder has."""
    mine = [number for number, machine in enumerate(dealt(sizes, share.machines)) if machine == share.number]
    folders = [items[number].folder for number in mine]
    with workers(concurrency or cores()) as pool:
        rounds = Rounds(job, {job.stage: Span(0, 100, "partitions")}, pool)
        rounds.run(job.stage, work, [items[number] for number in mine], folders, [sizes[number] for number in mine])
    rounds.record()
    write_json(job.output / "partitions.json", [folder.name for folder in folders])
    job.finish(partitions=len(folders), documents=sum(map(documents, folders)))
