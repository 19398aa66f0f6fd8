"""Divide the rows of each optimizer step over processes.

The rows of a step and their order depend only on the seed and the step, and not on the layout. An epoch's last step may
have fewer rows than the others, and fewer rows than there are processes; a process without a row then computes a blank
row, which has no loss.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, SequentialSampler

BLANK = "blank"  # marks a row that has no loss


def micro_batches(rows: Sequence[int], micro_batch: int, rank: int, processes: int) -> Iterator[list[int]]:
    """Yield a process's micro batches of one step; a blank row is ~row. Every process has the same number of them."""
    count = math.ceil(len(rows) / (micro_batch * processes)) * processes  # micro batches of all processes
    size, larger = divmod(len(rows), count)
    for number in range(rank, count, processes):
        begin = number * size + min(number, larger)
        yield list(rows[begin : begin + size + (number < larger)]) or [~rows[0]]


class RankBatches(Sampler[list[int]]):
    """A process's micro batches of an epoch. `order` yields the rows of all processes, and is read once per epoch."""

    def __init__(self, order: Sampler[int], batch_size: int, micro_batch: int, rank: int, processes: int) -> None:
        self.order, self.batch_size = order, batch_size
        self.micro_batch, self.rank, self.processes = micro_batch, rank, processes

    def __len__(self) -> int:
        full, rest = divmod(len(self.order), self.batch_size)  # type: ignore[arg-type] # a sampler with a length
        per_step = self.micro_batch * self.processes
        return full * (self.batch_size // per_step) + math.ceil(rest / per_step)

    def __iter__(self) -> Iterator[list[int]]:
        order = iter(self.order)
        while rows := list(islice(order, self.batch_size)):
            yield from micro_batches(rows, self.micro_batch, self.rank, self.processes)


class Shuffled(Sampler[int]):
    """Rows in the random order of Accelerate's seedable sampler, which depends only on the seed and the epoch."""

    def __init__(self, length: int, trainer: Any) -> None:
        self.length, self.trainer = length, trainer

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        drawn = torch.Generator().manual_seed(self.trainer.args.seed + int(self.trainer.state.epoch or 0))
        yield from torch.randperm(self.length, generator=drawn).tolist()


class WithBlanks(Dataset[dict[str, Any]]):
    """Rows by number; ~number is a blank copy of the row. `ignored` is the value of the copy's labels, if it has any;
    with None, it keeps the row's labels."""

    def __init__(self, rows: Any, ignored: int | None) -> None:
        self.rows, self.ignored = rows, ignored

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number >= 0:
            return dict(self.rows[number])
        row = dict(self.rows[~number])
        ignores = self.ignored is not None and "labels" in row
        labels = {"labels": [self.ignored] * len(row["labels"])} if ignores else {}
        return row | labels | {BLANK: True}


def loader(trainer: Any, ignored: int | None) -> DataLoader[Any]:
    """Return a process's micro batches for a trainer whose `_get_train_sampler` is ordered by epoch."""
    order = trainer._get_train_sampler()
    rows = trainer._remove_unused_columns(trainer.train_dataset, description="training")
    args = trainer.args
    batch_size = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    if hasattr(order, "sampler"):  # sorts by length within groups of a step's rows
        order.sampler.batch_size = batch_size
    elif not isinstance(order, SequentialSampler):
        order = Shuffled(len(rows), trainer)
    return DataLoader(
        WithBlanks(rows, ignored),
        batch_sampler=RankBatches(
            order, batch_size, args.per_device_train_batch_size, args.process_index, args.world_size
        ),
        collate_fn=trainer.data_collator,
        pin_memory=args.dataloader_pin_memory,
    )
