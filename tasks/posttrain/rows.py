"""The rows that a run takes: which, in what order, and what is left out.

Rows stand in the order of the hash of the seed and the row: a set with more rows has the others in the same order, and
the same seed takes the same rows. A row that is longer than the limits is passed over and counted.
"""

import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from blake3 import blake3

from tasks.job import Job, StageError
from tasks.manifest import read_manifest
from tasks.posttrain.spec import Limits
from tasks.rows.stored import Row

T = TypeVar("T")
KIND_FACT = "row_kind"  # of a set's manifest


@dataclass(frozen=True)
class Chosen(Generic[T]):
    rows: list[T]
    amount: float  # of all of them, as their sizes are measured
    too_long: int  # that were met on the way

    def counts(self) -> dict[str, float]:
        """What is recorded as step 0."""
        return {"rows": len(self.rows), "rows_too_long": self.too_long}


def kind_of(job: Job, *allowed: str) -> str:
    """The kind of the set's rows. Raises StageError when the stage cannot use it."""
    found = str(read_manifest(Path(job.inputs["rows"]["path"])).facts[KIND_FACT])
    if found not in allowed:
        raise StageError(f"{job.stage} takes rows of kind {' or '.join(allowed)}; the rows of this set are {found}")
    return found


def choose(
    job: Job,
    seed: int,
    limits: Limits,
    encode: Callable[[Row], T],
    tokens: Callable[[T], tuple[int, ...]],
    enough: float,
    size: Callable[[T], float] = lambda row: 1,
) -> Chosen[T]:
    """Encoded rows whose sizes make `enough`; all that fit where there are no more. `tokens`: see `Limits.fit`. Raises
    StageError when none fit."""
    chosen: list[T] = []
    total, too_long, longest = 0.0, 0, 0
    for row in in_order(job.input("rows") / "train.jsonl", seed):
        encoded = encode(row)
        if not limits.fit(*(length := tokens(encoded))):
            too_long += 1
            longest = max(longest, sum(length))
            continue
        chosen.append(encoded)
        total += size(encoded)
        if total >= enough:
            break
    if not chosen:
        raise StageError(
            f"none of the {too_long} rows for training is within {limits.said}; raise these, or give shorter rows"
            if too_long
            else "the set has no rows for training; give it more rows, or a smaller held_out"
        )
    if too_long:
        print(
            f"{too_long} of {too_long + len(chosen)} rows are longer than {limits.said}: left out (the longest has "
            f"{longest} tokens)",
            flush=True,
        )
    return Chosen(chosen, total, too_long)


def say_repeats(what: str, have: float, taken: float) -> None:
    """Where a run takes more than there is."""
    if have < taken:
        print(f"the run takes each of the {what} {taken / have:.1f} times: there are no more", flush=True)


def in_order(path: Path, seed: int) -> Iterator[Row]:
    """The rows of a JSONL file, as the seed has them. 16 bytes of memory a row."""
    keys, places, place = array("Q"), array("Q"), 0
    with path.open("rb") as lines:
        for line in lines:
            keys.append(_key(seed, line))
            places.append(place)
            place += len(line)
        for number in np.lexsort((places, keys)):
            lines.seek(places[number])
            yield json.loads(lines.readline())


def _key(seed: int, line: bytes) -> int:
    return int.from_bytes(blake3(seed.to_bytes(8, "little") + line.strip()).digest(length=8), "little")
