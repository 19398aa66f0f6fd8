"""Prepare a set of rows from a source: python -m baton.tasks.rows.rows JOB_DIR

Each row is read, converted to TRL's columns, validated, dropped if it is an exact duplicate (the first one is kept),
and assigned to a split by a hash of its prompt. Then training rows whose prompt occurs in the held-out split are
dropped (decontaminate.py). Memory: one row, and a digest of 16 bytes (about 100 as a Python object) for each.

    first = peek(spec, folder)    the first rows, to validate a source before running

Facts: `row_kind` and `format` (formats.py); `conversational`: lists of messages, not text; `columns`; `rows`,
`held_out_rows`; `duplicates`, `faulty`, `contaminated` count the rows left out.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from blake3 import blake3

from baton.infra.storage.durable import write_json
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.data.documents import SPLITS, Split, split_of
from baton.tasks.data.json_values import ROUNDED, TO_NULL, copied
from baton.tasks.rows.check import COLUMNS, Columns, RowError, problems, type_name
from baton.tasks.rows.decontaminate import count, drop_contaminated
from baton.tasks.rows.formats import FormatConverter
from baton.tasks.rows.messages import filled_in
from baton.tasks.rows.read import SourceRow, read, too_large
from baton.tasks.rows.spec import MOST_SEEN, RowsSpec
from baton.tasks.rows.stored import Row, encoded, is_conversational, read_lines, read_rows, repeats_prompt, split_key

BAD_ROWS = 20  # faulty rows reported together; reading stops there
PROBLEMS = 5  # reported per row
SAMPLES = 8  # rows shown in the report
PROGRESS_INTERVAL_S = 0.5


class Reading:
    """Yields a source's valid rows, and collects the problems of the others."""

    def __init__(self, spec: RowsSpec) -> None:
        self.spec = spec
        self.converter = FormatConverter(spec.columns, spec.format)
        self.columns = Columns()
        self.nulls: Counter[str] = Counter()  # number of rows by the place of nulls that Arrow fills in
        self.rows, self.repeats = 0, 0  # valid rows, those whose answers begin with the prompt
        self.faulty = 0
        self.problems: list[str] = []  # "chat.jsonl, line 7: …", of the first faulty rows

    def valid(self, rows: Iterator[SourceRow]) -> Iterator[tuple[Row, SourceRow]]:
        """Yield the valid rows, each with the row that was read. Unless faulty rows are to be dropped, raises
        StageError with the problems of the first ones."""
        refuse = self.spec.faulty == "refuse"
        first = [replace(row, value=copied(row.value)) for row in islice(rows, MOST_SEEN)]  # a dict may be reused
        values = [row.value for row in first if isinstance(row.value, dict)]
        self.converter.seen |= {name for row in values for name, value in row.items() if value is not None}
        for source_row in chain(first, rows):
            try:
                row = self._row(source_row)
            except RowError as error:
                self.faulty += 1
                if self.faulty <= BAD_ROWS:
                    more = [f"and {len(error.args) - PROBLEMS} more"] if len(error.args) > PROBLEMS else []
                    self.problems += [f"{source_row.place}: {problem}" for problem in [*error.args[:PROBLEMS], *more]]
                if self.faulty == BAD_ROWS and refuse:
                    break
            else:
                yield row, source_row
        if self.faulty and refuse:
            stopped = " (reading stopped there)" if self.faulty == BAD_ROWS else ""
            raise StageError(
                f"{self.spec.place()}: faulty rows: {self.faulty}{stopped}{self.faults()}\n"
                "Fix them, or set `faulty: drop` to drop, count and report such rows."
            )

    def notices(self) -> Iterator[str]:
        """Notices for the user about the set."""
        changes = sorted(self.converter.changes.items())
        prefix = "dropped: "
        unused = [f"{name.removeprefix(prefix)} ({rows:,} rows)" for name, rows in changes if name.startswith(prefix)]
        if unused:
            yield f"neither learned nor given to rewards: {'; '.join(unused)}"
        yield from (f"{change} in {rows:,} rows" for change, rows in changes if change.endswith((TO_NULL, ROUNDED)))
        yield from self.columns.notices()
        for place, rows in sorted(self.nulls.items()):
            yield (
                f"{place} has null in {rows:,} rows where Arrow fills in what a row lacks; it is kept as it is. Read "
                "the Parquet file or dataset itself, or leave such nulls out"
            )
        if 2 * self.repeats > self.rows:
            yield (
                f"the answers of {self.repeats:,} of {self.rows:,} rows begin with the prompt, which is then "
                "learned as part of the answer: leave it out of them"
            )
        yield from (f"columns: {name}: null: no row has this column" for name in sorted(self.converter.absent))
        if self.faulty:
            yield f"{self.faulty:,} faulty rows are left out: {self.problems[0]}{' …' if self.faulty > 1 else ''}"

    def faults(self) -> str:
        return "".join(f"\n  {problem}" for problem in self.problems)

    def _row(self, source_row: SourceRow) -> Row:
        value, place = source_row.value, source_row.place
        if isinstance(value, RowError):
            raise value
        if not isinstance(value, dict):
            raise RowError(f"expected a JSON object, not {type_name(value)}")
        row = self.converter.mapped(value, place)
        assert self.converter.format  # set by mapped()
        kind = self.converter.format.kind
        if wrong := [*problems(row, kind)] or [*self.columns.problems(row, kind, place)]:
            raise RowError(*wrong)
        self.nulls.update({*filled_in(row, COLUMNS[kind])})
        self.rows, self.repeats = self.rows + 1, self.repeats + repeats_prompt(row)
        if len(encoded(row).encode()) > self.spec.max_bytes():
            raise too_large(self.spec)
        self.columns.count(row)
        return row


@dataclass(frozen=True)
class First:
    """A source's first rows."""

    rows: list[Row]  # the valid ones, in TRL's columns
    faults: list[str]  # problems of the others
    kind: str | None  # None if no format was detected


def peek(spec: RowsSpec, folder: Path, most: int = MOST_SEEN) -> First:
    """Read a source's first rows. A user's function runs in this process, from files below `folder`. Raises StageError
    for an unreadable source."""
    reading = Reading(spec.model_copy(update={"faulty": "drop"}))
    rows = [row for row, _ in reading.valid(islice(read(spec, folder), most))]
    return First(rows, reading.problems, reading.converter.format.kind if reading.converter.format else None)


def with_places(spec: RowsSpec) -> Iterator[tuple[str, Row]]:
    """The valid rows of files, each with its place. Raises StageError for an unreadable source."""
    reading = Reading(spec.model_copy(update={"faulty": "drop"}))
    for row, source_row in reading.valid(read(spec, Path())):
        yield source_row.place, row


def work(job: Job) -> None:
    spec = job.spec(RowsSpec)
    if wrong := spec.problems():
        raise StageError("; ".join(map(str, wrong)))
    for line in spec.unread():
        job.notice(line)
    job.empty_output()
    paths: dict[Split, Path] = {"train": job.work / "train.jsonl", "held_out": job.output / "held_out.jsonl"}
    reading, duplicates, conversational = Reading(spec), 0, False
    numbers: dict[Split, int] = dict.fromkeys(SPLITS, 0)
    seen: set[bytes] = set()
    with ExitStack() as open_files:
        files = {
            split: open_files.enter_context(path.open("w", encoding="utf-8", newline="\n"))
            for split, path in paths.items()
        }
        corpus = job.input("corpora.0") if spec.documents else None
        for row, source_row in reading.valid(_with_progress(job, read(spec, job.work / "code", corpus))):
            line = encoded(row)
            digest = blake3(line.encode()).digest(16)
            if digest in seen:
                duplicates += 1
                continue
            seen.add(digest)
            split = source_row.split or split_of(split_key(row, spec.seed), spec.held_out)
            files[split].write(f"{line}\n")
            numbers[split] += 1
            conversational = is_conversational(row)
    if not seen:
        faulty = f"; {reading.faulty} are faulty:{reading.faults()}" if reading.faulty else "; choose another source"
        raise StageError(f"{spec.place()}: no rows{faulty}")
    _refuse_empty(spec, numbers, paths)
    dropped = drop_contaminated(paths["train"], [paths["held_out"]], job.output / "train.jsonl", job.notice)
    paths["train"].unlink()
    assert reading.converter.format
    facts = {
        "row_kind": reading.converter.format.kind,
        "format": reading.converter.format.name,
        "conversational": conversational,
        "columns": reading.columns.names,
        "rows": numbers["train"] - count(dropped),
        "held_out_rows": numbers["held_out"],
        "duplicates": duplicates,
        "faulty": reading.faulty,
        "contaminated": count(dropped),
    }
    changes = dict(sorted(reading.converter.changes.items()))
    details = {
        "drops_faulty": spec.faulty == "drop",
        "changes": changes,
        "first_faulty": reading.problems,
        "first_contaminated": dropped["first"],
    }
    write_json(job.output / "rows.json", facts | details)
    shown: Split = "held_out" if numbers["held_out"] else "train"
    write_json(job.record / "samples.json", list(islice(read_rows(job.output, shown), SAMPLES)))
    _say(spec, facts, changes)
    for notice in reading.notices():
        job.notice(notice)
    job.finish(**facts)


def _with_progress(job: Job, rows: Iterator[SourceRow]) -> Iterator[SourceRow]:
    """Yield the rows, reporting progress."""
    reported = time.monotonic()
    for number, row in enumerate(rows, start=1):
        if time.monotonic() - reported > PROGRESS_INTERVAL_S:
            reported = time.monotonic()
            job.progress(100 * row.done, 100, "%", rows=f"{number:,}")
        yield row


def _refuse_empty(spec: RowsSpec, numbers: dict[Split, int], paths: dict[Split, Path]) -> None:
    if spec.documents:
        return  # the corpus may have a single split
    total = sum(numbers.values())
    expected: dict[Split, bool] = {"held_out": spec.held_out > 0, "train": spec.held_out < 1}
    for split, path in paths.items():
        if expected[split] and not numbers[split]:
            other = next(path for name, path in paths.items() if name != split)
            prompts = len({split_key(row, spec.seed) for row in read_lines(other)})
            raise StageError(
                f"{spec.place()}: with held_out={spec.held_out:g} the {split.replace('_', '-')} split is empty: "
                f"{total} rows, distinct prompts: {prompts} (rows with one prompt stay together). Add prompts or "
                "change held_out: 0 holds out no rows, 1 all."
            )


def _say(spec: RowsSpec, facts: dict[str, Any], changes: dict[str, int]) -> None:
    """Log a summary."""
    print(f"{spec.place()}: format {facts['format']}, rows of kind {facts['row_kind']}")
    for change, number in changes.items():
        print(f"  in {number:,} rows: {change}")
    left_out = (f"{facts[name]:,} {name}" for name in ("faulty", "duplicates", "contaminated"))
    print(f"  left out: {', '.join(left_out)}; {facts['rows']:,} for training, {facts['held_out_rows']:,} held out")


if __name__ == "__main__":
    main(work)
