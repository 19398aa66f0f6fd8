"""Drop training rows whose prompt occurs in a held-out set.

    python -m baton.tasks.rows.decontaminate JOB_DIR        inputs: rows (Rows), against.0, against.1, … (Rows)

The rule is GPT-3's (Brown et al., "Language Models are Few-Shot Learners", 2020, appendix C), applied to prompts:

- A row is dropped if its entire prompt equals that of a held-out row, ignoring case and white space. This also catches
  short prompts.
- A row is dropped if one of its turns shares 13 consecutive words (`baton.tasks.data.ngrams`) with a turn of a held-out
  prompt.
- 13-grams in more than 10 training rows are ignored, such as an instruction that all prompts begin with. Rows that
  share only such 13-grams are reported if a single held-out prompt has them: they may be variants of it.

Prompts are compared (`stored.prompt_turns`): the user's turns or the prompt, or all of a plain text. System prompts and
answers don't count. Rows are also compared with the held-out split of the same set.

Memory: 12 bytes per word of the held-out prompts; rows are read one at a time, twice.

The facts are those of the set; `contaminated` counts the dropped rows. rows.json lists the first of them.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from baton.infra.storage.durable import write_json
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.ngrams import Hashes, ngrams, word_hashes
from baton.tasks.rows.stored import Row, plain, prompt_turns, read_lines

WORDS = 13
COMMON = 10  # a 13-gram in more training rows than this is ignored
LISTED = 20  # dropped rows in rows.json
SHOWN = 200  # characters of each


class PromptIndex:
    """An index of the prompts of held-out rows."""

    def __init__(self, rows: Iterable[Row]) -> None:
        prompts = {_prompt(row): np.unique(_windows(row)) for row in rows}
        self._prompts = prompts.keys()
        windows = np.concatenate([np.empty(0, np.uint64), *prompts.values()])
        self._windows, prompts_with = np.unique(windows, return_counts=True)
        self._is_unique = prompts_with == 1  # whether a single held-out prompt has the window
        self._rows = np.zeros(len(self._windows), np.uint32)  # number of training rows with the window

    def note(self, row: Row) -> bool:
        """Count a row's windows, to find the common ones. Returns whether the row may be contaminated."""
        shared = self._shared(row)
        self._rows[shared] += 1
        return len(shared) > 0 or _prompt(row) in self._prompts

    def evidence(self, row: Row) -> str:
        """The rule that a row violates; empty if it may be trained on."""
        if _prompt(row) in self._prompts:
            return "prompt"
        shared = self._shared(row)
        return "13 words" if (self._rows[shared] <= COMMON).any() else ""

    def is_alike(self, row: Row) -> bool:
        """Return whether a row has 13-grams that a single held-out prompt has."""
        return bool(self._is_unique[self._shared(row)].any())

    def _shared(self, row: Row) -> npt.NDArray[np.intp]:
        """Indices of the held-out windows that occur in a row."""
        windows = _windows(row)
        if not len(self._windows) or not len(windows):
            return np.empty(0, np.intp)
        places = np.minimum(np.searchsorted(self._windows, windows), len(self._windows) - 1)
        return np.unique(places[self._windows[places] == windows])


def drop_contaminated(
    rows: Path, held_out: Iterable[Path], output: Path, notice: Callable[[str], None]
) -> dict[str, Any]:
    """Copy `rows` to `output` without those whose prompts occur in the held-out rows; return a summary of the dropped
    ones. Raises StageError if no row is left."""
    known = PromptIndex(row for path in held_out for row in read_lines(path))
    suspects = {number for number, row in enumerate(read_lines(rows), start=1) if known.note(row)}
    dropped: dict[str, Any] = {"prompt": 0, "13 words": 0, "first": []}
    number = alike = 0
    with rows.open("rb") as lines, output.open("wb") as target:
        for number, line in enumerate(lines, start=1):
            row = json.loads(line) if number in suspects else None
            rule = known.evidence(row) if row else ""
            if not row or not rule:
                alike += row is not None and known.is_alike(row)
                target.write(line)
                continue
            dropped[rule] += 1
            if len(dropped["first"]) < LISTED:
                dropped["first"].append({"row": number, "rule": rule, "asked": "\n".join(prompt_turns(row))[:SHOWN]})
    if number and number == count(dropped):
        raise StageError(
            f"all {number} training rows occur in a held-out set, such as {dropped['first'][0]['asked']!r}; train "
            "on other rows, or hold out others"
        )
    if alike:
        notice(
            f"{alike:,} training rows share {WORDS} words with one held-out prompt and with more than {COMMON} other "
            "rows, and stay: an instruction, or variants of the prompt, which should be removed"
        )
    return dropped


def count(dropped: dict[str, Any]) -> int:
    """Number of dropped rows."""
    return int(dropped["prompt"] + dropped["13 words"])


def work(job: Job) -> None:
    rows = job.input("rows")
    job.empty_output()
    shutil.copyfile(rows / "held_out.jsonl", job.output / "held_out.jsonl")
    held_out = [folder / "held_out.jsonl" for folder in (rows, *job.input_list("against"))]
    dropped = drop_contaminated(rows / "train.jsonl", held_out, job.output / "train.jsonl", job.notice)
    facts = read_manifest(rows).facts
    changed = {"rows": facts["rows"] - count(dropped), "contaminated": facts["contaminated"] + count(dropped)}
    record = json.loads((rows / "rows.json").read_text())
    first = [*record["first_contaminated"], *dropped["first"]][:LISTED]
    write_json(job.output / "rows.json", record | changed | {"first_contaminated": first})
    print(f"{count(dropped):,} of {facts['rows']:,} training rows occur in a held-out set and are left out")
    job.finish(**facts | changed)


def _windows(row: Row) -> Hashes:
    """Hashes of all 13-grams of each turn."""
    windows = [np.empty(0, np.uint64)]
    for turn in prompt_turns(row):
        windows.append(ngrams(word_hashes(turn), WORDS))
    return np.concatenate(windows)


def _prompt(row: Row) -> bytes:
    """Hash of a row's entire prompt."""
    return blake3("\n".join(plain(turn) for turn in prompt_turns(row)).encode()).digest(8)


if __name__ == "__main__":
    main(work)
