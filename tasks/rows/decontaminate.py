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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from infra.durable import write_json
from tasks.job import Job, StageError, main
from tasks.manifest import read_manifest
from tasks.rows.stored import Row, asked, encoded, plain, read_lines

WORDS = 13
COMMON = 10  # 13 words in more rows to train on than this are no evidence
TOLD = 20  # dropped rows that rows.json shows
SHOWN = 200  # characters of each

Hashes = npt.NDArray[np.uint64]

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\s\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
_AROUND = re.compile(r"^[\W_]+|[\W_]+$")


class HeldOut:
    """What is asked in some held-out rows, to be looked up."""

    def __init__(self, rows: Iterable[Row]) -> None:
        whole, grams = [], [np.empty(0, np.uint64)]
        for row in rows:
            turns = asked(row)
            whole.append(_whole(turns))
            grams += [_grams(turn) for turn in turns]
        self._whole = np.unique(np.array(whole, np.uint64))
        self._grams = np.unique(np.concatenate(grams))
        self._rows = np.zeros(len(self._grams), np.uint32)  # to train on, by the words that they share

    def note(self, row: Row) -> None:
        """Count a row's words, so that the common ones are known."""
        self._rows[self._shared(row)] += 1

    def evidence(self, row: Row) -> str:
        """Why a row is no row to train on: the rule that it breaks; empty when it is one."""
        if _holds(self._whole, _whole(asked(row))):
            return "prompt"
        shared = self._shared(row)
        return "13 words" if len(shared) and self._rows[shared].min() <= COMMON else ""

    def _shared(self, row: Row) -> npt.NDArray[np.intp]:
        if not len(self._grams):
            return np.empty(0, np.intp)
        grams = np.unique(np.concatenate([_grams(turn) for turn in asked(row)] or [np.empty(0, np.uint64)]))
        places = np.minimum(np.searchsorted(self._grams, grams), len(self._grams) - 1)
        found: npt.NDArray[np.intp] = places[self._grams[places] == grams]
        return found


def words(text: str) -> list[str]:
    return [_AROUND.sub("", word) or word for word in _WORD.findall(text.lower())]


def drop_contaminated(rows: Path, held_out: Iterable[Path], output: Path) -> dict[str, Any]:
    """Write the rows of `rows` to `output` without those that stand in the held-out rows; say what was dropped."""
    known = HeldOut(row for path in held_out for row in read_lines(path))
    for row in read_lines(rows):
        known.note(row)
    dropped: dict[str, Any] = {"prompt": 0, "13 words": 0, "first": []}
    with output.open("w", encoding="utf-8", newline="\n") as kept:
        for number, row in enumerate(read_lines(rows), start=1):
            why = known.evidence(row)
            if not why:
                kept.write(encoded(row) + "\n")
                continue
            dropped[why] += 1
            if len(dropped["first"]) < TOLD:
                dropped["first"].append({"row": number, "rule": why, "asked": "\n".join(asked(row))[:SHOWN]})
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
    if facts["rows"] and not left:
        raise StageError(
            f"all {facts['rows']} rows to train on stand in a held-out set: {dropped['first'][0]['asked']!r} is one of "
            "them. Train on other rows, or evaluate on others."
        )
    changed = {"rows": left, "contaminated": facts["contaminated"] + count(dropped)}
    said = json.loads((rows / "rows.json").read_text())
    first = [*said["first_contaminated"], *dropped["first"]][:TOLD]
    write_json(job.output / "rows.json", said | changed | {"first_contaminated": first})
    job.finish(**facts | changed)


def _hash(text: str) -> int:
    return int.from_bytes(blake3(text.encode()).digest(8), "little")


def _whole(turns: list[str]) -> int:
    return _hash("\n".join(plain(turn) for turn in turns))


def _grams(text: str) -> Hashes:
    found = words(text)
    grams = {" ".join(found[at : at + WORDS]) for at in range(len(found) - WORDS + 1)}
    return np.array(sorted(_hash(gram) for gram in grams), np.uint64)


def _holds(hashes: Hashes, one: int) -> bool:
    at = np.searchsorted(hashes, np.uint64(one))
    return bool(at < len(hashes) and hashes[at] == np.uint64(one))


if __name__ == "__main__":
    main(work)
