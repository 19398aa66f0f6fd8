"""Select the rows of a run.

Rows are ordered by a hash of seed and row, so that added rows don't reorder the others, and the same seed selects the
same rows. Rows longer than the limits are skipped and counted.
"""

import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from blake3 import blake3

from baton.tasks.core.job import Job, StageError
from baton.tasks.core.manifest import read_manifest
from baton.tasks.posttrain.encode import RowRefused
from baton.tasks.posttrain.spec import Example, LengthLimits, epochs
from baton.tasks.rows.stored import Row, drops_faulty

T = TypeVar("T")
E = TypeVar("E", bound=Example)
MANY_EPOCHS = 5  # from which the notice about them says how an overfit is seen
OVERFIT = "to see whether they are learned by heart, set train_prompts of an evaluator on this set"
KIND_FACT = "row_kind"  # key in the facts of a set's manifest


@dataclass(frozen=True)
class Chosen(Generic[T]):
    rows: list[T]
    amount: float  # total size of the rows
    too_long: int  # number of skipped rows

    def counts(self) -> dict[str, float]:
        """Return the metrics to record as step 0."""
        return {"rows": len(self.rows), "rows_too_long": self.too_long}


def kind_of(job: Job, *allowed: str) -> str:
    """Return the kind of the set's rows. Raises StageError if it is not allowed."""
    kind = str(read_manifest(Path(job.inputs["rows"]["path"])).facts[KIND_FACT])
    if kind not in allowed:
        raise StageError(f"{job.stage} needs rows of kind {' or '.join(allowed)}; the rows of this set are {kind}")
    return kind


def columns_of(job: Job) -> list[str]:
    """Return the set's columns, without the optional ones."""
    return list(read_manifest(Path(job.inputs["rows"]["path"])).facts["columns"])


def select(
    job: Job,
    seed: int,
    limits: LengthLimits,
    encode: Callable[[Row], E],
    enough: float,
    size: Callable[[E], float] = lambda row: 1,
    ahead: Callable[[Iterator[Row]], Iterator[Row]] = iter,
) -> Chosen[E]:
    """Select encoded rows until their sizes add up to `enough`, or all that fit the limits. A row that `encode`
    refuses is skipped if the set drops faulty rows. `ahead` yields the rows, and prepares later ones while it does
    (`RowEncoder.ahead`). Raises StageError if none fit."""
    chosen: list[E] = []
    total, too_long, longest = 0.0, 0, 0
    refused: list[str] = []
    rows = job.input("rows")
    for row in ahead(in_order(rows / "train.jsonl", seed)):
        try:
            encoded = encode(row)
        except RowRefused as error:
            if not drops_faulty(rows):
                raise RowRefused(
                    f"{error}\nSet the rows' `faulty: drop` to leave out, count and report such rows."
                ) from error
            refused.append(str(error))
            continue
        if not limits.fit(*(length := encoded.lengths)):
            too_long += 1
            longest = max(longest, sum(length))
            continue
        chosen.append(encoded)
        total += size(encoded)
        if total >= enough:
            break
    if refused:
        job.notice(f"{len(refused)} rows are left out (faulty: drop): {refused[0]}{' …' if len(refused) > 1 else ''}")
    if not chosen:
        raise StageError(
            f"none of the {too_long} training rows is within {limits.shown}; raise these, or use shorter rows"
            if too_long
            else f"all {len(refused)} training rows are refused: {refused[0]}"
            if refused
            else "the set has no training rows; add rows, or lower held_out"
        )
    if too_long:
        job.notice(
            f"{too_long} of {too_long + len(chosen)} rows are longer than {limits.shown} and left out (the longest has "
            f"{longest} tokens)"
        )
    return Chosen(chosen, total, too_long)


def note_epochs(job: Job, what: str, steps: int, batch_size: int, rows: int) -> None:
    """Report to the user if the steps go over the rows more than once. `what`: the number of rows as text. `rows`: the
    number of rows, or of sequences if the rows are packed."""
    if steps * batch_size > rows:
        last = rows % batch_size
        small = f"; an epoch's last step has {last} instead of batch_size {batch_size}" * (0 < 2 * last <= batch_size)
        number = epochs(steps, batch_size, rows)
        advice = f"; {OVERFIT}" if number >= MANY_EPOCHS else ""
        job.notice(f"{number:.1f} epochs over {what}: the set has no more{small}{advice}")


def in_order(path: Path, seed: int) -> Iterator[Row]:
    """Yield the rows of a JSONL file in the seed's order. Uses 16 bytes of memory per row."""
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
