"""The engine that makes a set of rows of a source: python -m tasks.rows.rows JOB_DIR

One pass, one row in memory at a time: read, recognised and mapped to TRL's columns, checked, exact duplicates dropped
(of equal rows the first is kept), split by a hash of the prompt; then the rows to train on whose prompt stands in the
set's own held-out part are dropped (decontaminate.py). Held in memory: 16 bytes a row (some 70 as Python has them).

    peek(spec, folder)    the first rows, and what is wrong with them: for a look before anything is spent

Facts: `row_kind` and `format` (recognise.py), `conversational`: lists of messages, not text; `rows`, `held_out_rows`;
`columns`; `duplicates`, `faulty`, `contaminated` count what was left out.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from blake3 import blake3

from infra.durable import write_json
from tasks.data.documents import split_of
from tasks.job import Job, StageError, main
from tasks.rows.check import Columns, problems
from tasks.rows.decontaminate import count, drop_contaminated
from tasks.rows.read import Found, read
from tasks.rows.recognise import Recognised, Wrong
from tasks.rows.spec import RowsSpec
from tasks.rows.stored import (
    SPLITS,
    Row,
    Split,
    encoded,
    is_conversational,
    read_lines,
    read_rows,
    split_key,
    writers,
)

BAD_ROWS = 20  # told together; reading stops there
PEEKED = 64  # rows
SAMPLES = 8  # rows shown in the report
PROGRESS_INTERVAL_S = 0.5


@dataclass
class Reading:
    """A source as it is read: sound rows, and what was wrong with the others."""

    spec: RowsSpec
    recognised: Recognised
    columns: Columns = field(default_factory=Columns)
    faulty: int = 0
    told: list[str] = field(default_factory=list)  # "chat.jsonl, line 7: …", of the first bad rows

    @classmethod
    def of(cls, spec: RowsSpec) -> "Reading":
        return cls(spec, Recognised(spec.columns, spec.format))

    def sound(self, found: Iterator[Found]) -> Iterator[Row]:
        """The sound rows. Raises StageError with all problems of the first bad ones, unless they are to be dropped."""
        for each in found:
            row, wrong = self._looked_at(each)
            if not wrong:
                assert row is not None
                yield row
                continue
            self.faulty += 1
            if self.faulty <= BAD_ROWS:
                self.told += [f"{each.place}: {problem}" for problem in wrong]
            if self.faulty == BAD_ROWS and self.spec.faulty == "refuse":
                break
        if self.faulty and self.spec.faulty == "refuse":
            raise self._refused()

    def _looked_at(self, found: Found) -> tuple[Row | None, list[str]]:
        if found.row is None:
            return None, [found.fault]
        try:
            row = self.recognised.mapped(found.row, found.place)
        except Wrong as wrong:
            return None, [str(wrong)]
        wrong = list(problems(row, self.recognised.kind)) or list(self.columns.problems(row, found.place))
        most = int(self.spec.max_row_mb * 1e6)
        if not wrong and len(encoded(row).encode()) > most:
            wrong = [f"larger than max_row_mb = {most / 1e6:g} MB: raise it, split the row, or leave it out"]
        return row, wrong

    def _refused(self) -> StageError:
        stopped = self.faulty == BAD_ROWS
        return StageError(
            f"{self.spec.place()}: {self.faulty} faulty rows{' (reading stopped there)' if stopped else ''}:\n"
            + "\n".join(f"  {problem}" for problem in self.told)
            + "\nCorrect them; or say `faulty: drop`, and such rows are dropped, counted and told."
        )


def peek(spec: RowsSpec, folder: Path, most: int = PEEKED) -> tuple[list[Row], list[str]]:
    """The sound ones of a source's first rows, in TRL's columns, and what is wrong with the others. A function of the
    user's runs in this process, from files below `folder`. Raises StageError for a source that cannot be read."""
    reading = Reading.of(spec.model_copy(update={"faulty": "drop"}))
    rows = list(reading.sound(islice(read(spec, folder), most)))
    return rows, reading.told


def work(job: Job) -> None:
    spec = job.spec(RowsSpec)
    if wrong := spec.problems():
        raise StageError("; ".join(map(str, wrong)))
    job.empty_output()
    paths: dict[Split, Path] = {"train": job.work / "train.jsonl", "held_out": job.output / "held_out.jsonl"}
    reading = Reading.of(spec)
    rows: dict[Split, int] = dict.fromkeys(SPLITS, 0)
    duplicates = 0
    conversational = False
    seen: set[bytes] = set()
    with writers(paths) as files:
        for row in reading.sound(_reading(job, spec)):
            line = encoded(row)
            digest = blake3(line.encode()).digest(16)
            if digest in seen:
                duplicates += 1
                continue
            seen.add(digest)
            split = split_of(split_key(row, spec.seed), spec.held_out)
            files[split].write(line + "\n")
            rows[split] += 1
            conversational = is_conversational(row)
    _refuse_empty(spec, rows, paths)
    dropped = drop_contaminated(paths["train"], [paths["held_out"]], job.output / "train.jsonl")
    paths["train"].unlink()
    facts = {
        "row_kind": reading.recognised.kind,
        "format": reading.recognised.name,
        "conversational": conversational,
        "columns": reading.columns.names,
        "rows": rows["train"] - count(dropped),
        "held_out_rows": rows["held_out"],
        "duplicates": duplicates,
        "faulty": reading.faulty,
        "contaminated": count(dropped),
    }
    told = reading.recognised.record() | {"first_faulty": reading.told, "first_contaminated": dropped["first"]}
    write_json(job.output / "rows.json", facts | told)
    write_json(job.record / "samples.json", list(islice(read_rows(job.output, _shown(rows)), SAMPLES)))
    _say(spec, facts | told)
    job.finish(**facts)


def _shown(rows: dict[Split, int]) -> Split:
    return "held_out" if rows["held_out"] else "train"


def _reading(job: Job, spec: RowsSpec) -> Iterator[Found]:
    """The source from its first row to its last, told on the terminal."""
    shown = time.monotonic()
    for number, found in enumerate(read(spec, job.work / "code"), start=1):
        if time.monotonic() - shown > PROGRESS_INTERVAL_S:
            shown = time.monotonic()
            job.progress(100 * found.done, 100, "%", rows=f"{number:,}")
        yield found


def _refuse_empty(spec: RowsSpec, rows: dict[Split, int], paths: dict[Split, Path]) -> None:
    found = sum(rows.values())
    if not found:
        raise StageError(f"{spec.place()}: no rows; choose another source")
    for split, wanted in (("held_out", spec.held_out > 0), ("train", spec.held_out < 1)):
        if not rows[split] and wanted:  # type: ignore[index]
            full = paths["train" if split == "held_out" else "held_out"]
            prompts = len({split_key(row, spec.seed) for row in read_lines(full)})
            raise StageError(
                f"{spec.place()}: with held_out={spec.held_out:g}: none of the {found} rows, which have {prompts} "
                f"prompt{'s' * (prompts > 1)}, falls into the {split.replace('_', '-')} part (rows with one prompt stay "
                "together). Give more prompts, another held_out, or 0 or 1 for all rows on one side."
            )


def _say(spec: RowsSpec, about: dict[str, Any]) -> None:
    """What became of the source, for its log."""
    print(f"{spec.place()}: recognised as {about['format']} ({about['row_kind']})")
    for what, number in about["mapped"].items():
        print(f"  mapped in {number:,} rows: {what}")
    for column, number in about["dropped_columns"].items():
        print(f"  dropped from {number:,} rows: {column}")
    for name in ("faulty", "duplicates", "contaminated"):
        print(f"  dropped rows, {name}: {about[name]:,}")
    print(f"  {about['rows']:,} rows to train on, {about['held_out_rows']:,} held out")


if __name__ == "__main__":
    main(work)
