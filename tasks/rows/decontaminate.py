"""Rows whose prompt stands in a held-out set are no rows to train on.

python -m tasks.rows.decontaminate JOB_DIR        inputs: rows (Rows), against.0, against.1, … (Rows)

The rule is that of GPT-3 (Brown et al., "Language Models are Few-Shot Learners", 2020, appendix C), on prompts:

- A row is dropped when what it asks is what a held-out row asks, but for case and white space. So are short prompts.
- A row is dropped when one of its turns shares 13 words in a row with a turn of a held-out prompt. Words are in lower
  case and without punctuation around them (a sign that stands alone is a word: 3 + 5 is not 3 - 5); each Chinese or
  Japanese character is a word.
- 13 words that stand in more than 10 of the rows to train on are no evidence: an instruction that all prompts begin
  with, a common phrase.

What is compared is what is asked (`stored.asked`): the user's turns or the prompt, of plain text all of it. System
prompts and answers do not count. The set's own held-out part is one of those that its rows are compared with.

Held in memory: 8 bytes for each word of the held-out prompts, and 4 to count; rows are read one at a time, twice.

Facts: those of the set; `contaminated` counts the rows that were dropped. rows.json has the first of them.
"""

import json
import re
import shutil
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from string import punctuation
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from infra.durable import write_json
from tasks.job import Job, StageError, main
from tasks.manifest import read_manifest
from tasks.rows.stored import Row, asked, plain, read_lines

WORDS = 13
COMMON = 10  # 13 words in more rows to train on than this are no evidence
KNOWN_WORDS = 1_000_000  # whose hashes are remembered: some 200 MB
TOLD = 20  # dropped rows that rows.json shows
SHOWN = 200  # characters of each

Hashes = npt.NDArray[np.uint64]

_AROUND = punctuation + "“”‘’„«»…–—。、，！？：；（）「」『』"
_CHARACTER = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
# a window's hash is the sum of its words' hashes times these: odd numbers, by Knuth's constant for 64 bits
_FACTORS = [np.uint64(pow(6364136223846793005, place + 1, 2**64)) for place in range(WORDS)]


class HeldOut:
    """What is asked in some held-out rows, to be looked up."""

    def __init__(self, rows: Iterable[Row]) -> None:
        whole, windows = [], [np.empty(0, np.uint64)]
        for row in rows:
            whole.append(_whole(row))
            windows.append(np.unique(_windows(row)))
        self._whole = set(whole)
        self._windows = np.unique(np.concatenate(windows))
        self._rows = np.zeros(len(self._windows), np.uint32)  # to train on, that have the window

    def note(self, row: Row) -> bool:
        """Count a row's windows, so that the common ones are known. Whether it may have to be dropped."""
        shared = self._shared(row)
        self._rows[shared] += 1
        return len(shared) > 0 or _whole(row) in self._whole

    def evidence(self, row: Row) -> str:
        """The rule by which a row is no row to train on; empty when it is one."""
        if _whole(row) in self._whole:
            return "prompt"
        shared = self._shared(row)
        return "13 words" if len(shared) and self._rows[shared].min() <= COMMON else ""

    def _shared(self, row: Row) -> npt.NDArray[np.intp]:
        """Where the windows stand that a row shares."""
        windows = _windows(row)
        if not len(self._windows) or not len(windows):
            return np.empty(0, np.intp)
        places = np.minimum(np.searchsorted(self._windows, windows), len(self._windows) - 1)
        return np.unique(places[self._windows[places] == windows])


def drop_contaminated(rows: Path, held_out: Iterable[Path], output: Path) -> dict[str, Any]:
    """Write the rows of `rows` to `output` without those that stand in the held-out rows; say what was dropped."""
    known = HeldOut(row for path in held_out for row in read_lines(path))
    suspects = {number for number, row in enumerate(read_lines(rows), start=1) if known.note(row)}
    dropped: dict[str, Any] = {"prompt": 0, "13 words": 0, "first": []}
    number = 0
    with rows.open("rb") as lines, output.open("wb") as kept:
        for number, line in enumerate(lines, start=1):
            row = json.loads(line) if number in suspects else None
            why = known.evidence(row) if row else ""
            if not row or not why:
                kept.write(line)
                continue
            dropped[why] += 1
            if len(dropped["first"]) < TOLD:
                dropped["first"].append({"row": number, "rule": why, "asked": "\n".join(asked(row))[:SHOWN]})
    if number and number == count(dropped):
        raise StageError(
            f"all {number} rows to train on stand in a held-out set, such as {dropped['first'][0]['asked']!r}; train "
            "on other rows, or hold out others"
        )
    return dropped


def count(dropped: dict[str, Any]) -> int:
    """How many rows were dropped."""
    return int(dropped["prompt"] + dropped["13 words"])


def work(job: Job) -> None:
    rows = job.input("rows")
    against = [job.input(name) for name in job.inputs if name != "rows"]
    job.empty_output()
    shutil.copyfile(rows / "held_out.jsonl", job.output / "held_out.jsonl")
    held_out = [folder / "held_out.jsonl" for folder in (rows, *against)]
    dropped = drop_contaminated(rows / "train.jsonl", held_out, job.output / "train.jsonl")
    facts = read_manifest(rows).facts
    left = facts["rows"] - count(dropped)
    changed = {"rows": left, "contaminated": facts["contaminated"] + count(dropped)}
    said = json.loads((rows / "rows.json").read_text())
    first = [*said["first_contaminated"], *dropped["first"]][:TOLD]
    write_json(job.output / "rows.json", said | changed | {"first_contaminated": first})
    print(f"{count(dropped):,} of {facts['rows']:,} rows to train on stand in a held-out set and are left out")
    job.finish(**facts | changed)


@lru_cache(KNOWN_WORDS)
def _hash(word: str) -> int:
    """Of a word without punctuation around it; -1 for nothing but punctuation, but for a sign of ASCII's alone."""
    bare = word.strip(_AROUND) or (word if word.isascii() else "")
    return zlib.crc32(bare.encode()) if bare else -1


def _windows(row: Row) -> Hashes:
    """The hash of each 13 words in a row, of each turn."""
    found = [np.empty(0, np.uint64)]
    for turn in asked(row):
        text = turn.lower() if turn.isascii() else _CHARACTER.sub(r" \g<0> ", turn.lower())
        hashes = np.array([number for word in text.split() if (number := _hash(word)) >= 0], np.uint64)
        size = len(hashes) - WORDS + 1
        if size > 0:
            found.append(np.sum([hashes[at : at + size] * factor for at, factor in enumerate(_FACTORS)], axis=0))
    return np.concatenate(found)


def _whole(row: Row) -> bytes:
    """The hash of all that a row asks."""
    return blake3("\n".join(plain(turn) for turn in asked(row)).encode()).digest(8)


if __name__ == "__main__":
    main(work)
