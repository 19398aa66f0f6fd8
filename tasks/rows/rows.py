"""The engine that makes a set of rows of a source: python -m tasks.rows.rows JOB_DIR

One row in memory at a time: read, recognised and mapped to TRL's columns, checked, exact duplicates dropped (of equal
rows the first is kept), split by a hash of the prompt. Then the rows to train on whose prompt stands in the held-out
part are dropped (decontaminate.py). Held in memory: 16 bytes a row (some 100 as Python has them).

    first = peek(spec, folder)    the first rows, for a look before anything is spent

Facts: `row_kind` and `format` (recognise.py); `conversational`: lists of messages, not text; `columns`; `rows`,
`held_out_rows`; `duplicates`, `faulty`, `contaminated` count what was left out.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from blake3 import blake3

from infra.durable import write_json
from tasks.data.documents import SPLITS, Split, split_of
from tasks.job import Job, StageError, main
from tasks.rows.check import Columns, Wrong, problems, type_name
from tasks.rows.decontaminate import count, drop_contaminated
from tasks.rows.read import Found, read, too_large
from tasks.rows.recognise import Recognised
from tasks.rows.spec import RowsSpec
from tasks.rows.stored import Row, encoded, is_conversational, read_lines, read_rows, split_key

BAD_ROWS = 20  # told together; reading stops there
PROBLEMS = 5  # of one row
SAMPLES = 8  # rows shown in the report
PROGRESS_INTERVAL_S = 0.5


class Reading:
    """A source as it is read: its sound rows, and what was wrong with the others."""

    def __init__(self, spec: RowsSpec) -> None:
        self.spec = spec
        self.recognised = Recognised(spec.columns, spec.format)
        self.columns = Columns()
        self.faulty = 0
        self.told: list[str] = []  # "chat.jsonl, line 7: …", of the first bad rows

    def sound(self, found: Iterator[Found]) -> Iterator[tuple[Row, Split | None]]:
        """The sound rows, and their splits where these are given. Raises StageError with all problems of the first bad
        ones, unless they are to be dropped."""
        refuse = self.spec.faulty == "refuse"
        for each in found:
            try:
                row = self._row(each)
            except Wrong as wrong:
                self.faulty += 1
                if self.faulty <= BAD_ROWS:
                    more = [f"and {len(wrong.args) - PROBLEMS} more"] if len(wrong.args) > PROBLEMS else []
                    self.told += [f"{each.place}: {problem}" for problem in [*wrong.args[:PROBLEMS], *more]]
                if self.faulty == BAD_ROWS and refuse:
                    break
            else:
                yield row, each.split
        if self.faulty and refuse:
            stopped = " (reading stopped there)" if self.faulty == BAD_ROWS else ""
            raise StageError(
                f"{self.spec.place()}: faulty rows: {self.faulty}{stopped}{self.faults()}\n"
                "Correct them; or say `faulty: drop`, and such rows are dropped, counted and told."
            )

    def faults(self) -> str:
        return "".join(f"\n  {problem}" for problem in self.told)

    def _row(self, found: Found) -> Row:
        if isinstance(found.value, Wrong):
            raise found.value
        if not isinstance(found.value, dict):
            raise Wrong(f"a JSON object is wanted, not {type_name(found.value)}")
        row = self.recognised.mapped(found.value, found.place)
        assert self.recognised.format  # it is known by now
        if wrong := [*problems(row, self.recognised.format.kind)] or [*self.columns.problems(row, found.place)]:
            raise Wrong(*wrong)
        if len(encoded(row).encode()) > self.spec.max_bytes():
            raise too_large(self.spec)
        return row


MOST_SEEN = 64  # rows of a look at a source


@dataclass(frozen=True)
class First:
    """A source's first rows."""

    rows: list[Row]  # the sound ones, in TRL's columns
    faults: list[str]  # what is wrong with the others
    kind: str | None  # None: nothing was recognised


def peek(spec: RowsSpec, folder: Path, most: int = MOST_SEEN) -> First:
    """A look at a source. A function of the user's runs in this process, from files below `folder`. Raises StageError
    for a source that cannot be read."""
    reading = Reading(spec.model_copy(update={"faulty": "drop"}))
    rows = [row for row, _ in reading.sound(islice(read(spec, folder), most))]
    return First(rows, reading.told, reading.recognised.format.kind if reading.recognised.format else None)


def work(job: Job) -> None:
    spec = job.spec(RowsSpec)
    if wrong := spec.problems():
        raise StageError("; ".join(map(str, wrong)))
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
        for row, given in reading.sound(_shown(job, read(spec, job.work / "code", corpus))):
            line = encoded(row)
            digest = blake3(line.encode()).digest(16)
            if digest in seen:
                duplicates += 1
                continue
            seen.add(digest)
            split = given or split_of(split_key(row, spec.seed), spec.held_out)
            files[split].write(f"{line}\n")
            numbers[split] += 1
            conversational = is_conversational(row)
    if not seen:
        faulty = f"; {reading.faulty} are faulty:{reading.faults()}" if reading.faulty else "; choose another source"
        raise StageError(f"{spec.place()}: no rows{faulty}")
    _refuse_empty(spec, numbers, paths)
    dropped = drop_contaminated(paths["train"], [paths["held_out"]], job.output / "train.jsonl")
    paths["train"].unlink()
    assert reading.recognised.format
    facts = {
        "row_kind": reading.recognised.format.kind,
        "format": reading.recognised.format.name,
        "conversational": conversational,
        "columns": reading.columns.names,
        "rows": numbers["train"] - count(dropped),
        "held_out_rows": numbers["held_out"],
        "duplicates": duplicates,
        "faulty": reading.faulty,
        "contaminated": count(dropped),
    }
    changes = dict(sorted(reading.recognised.changes.items()))
    about = {"changes": changes, "first_faulty": reading.told, "first_contaminated": dropped["first"]}
    write_json(job.output / "rows.json", facts | about)
    shown: Split = "held_out" if numbers["held_out"] else "train"
    write_json(job.record / "samples.json", list(islice(read_rows(job.output, shown), SAMPLES)))
    _say(spec, facts, changes)
    job.finish(**facts)


def _shown(job: Job, rows: Iterator[Found]) -> Iterator[Found]:
    """The source from its first row to its last, told on the terminal."""
    shown = time.monotonic()
    for number, found in enumerate(rows, start=1):
        if time.monotonic() - shown > PROGRESS_INTERVAL_S:
            shown = time.monotonic()
            job.progress(100 * found.done, 100, "%", rows=f"{number:,}")
        yield found


def _refuse_empty(spec: RowsSpec, numbers: dict[Split, int], paths: dict[Split, Path]) -> None:
    if spec.documents:
        return  # the corpus may have one split alone
    found = sum(numbers.values())
    wanted: dict[Split, bool] = {"held_out": spec.held_out > 0, "train": spec.held_out < 1}
    for split, path in paths.items():
        if wanted[split] and not numbers[split]:
            other = next(path for name, path in paths.items() if name != split)
            prompts = len({split_key(row, spec.seed) for row in read_lines(other)})
            raise StageError(
                f"{spec.place()}: with held_out={spec.held_out:g} the {split.replace('_', '-')} part is empty: {found} "
                f"rows, different prompts: {prompts} (rows with the same prompt stay together). Add prompts or change "
                "held_out; with 0 no row is held out, with 1 all are."
            )


def _say(spec: RowsSpec, facts: dict[str, Any], changes: dict[str, int]) -> None:
    """What became of the source, for its log."""
    print(f"{spec.place()}: recognised as {facts['format']}, rows of the kind {facts['row_kind']}")
    for what, number in changes.items():
        print(f"  in {number:,} rows: {what}")
    left_out = (f"{facts[name]:,} {name}" for name in ("faulty", "duplicates", "contaminated"))
    print(f"  left out: {', '.join(left_out)}; {facts['rows']:,} to train on, {facts['held_out_rows']:,} held out")


if __name__ == "__main__":
    main(work)
