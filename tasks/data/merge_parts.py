"""Put the encoded parts of a prefix together: its `.bin` and `.idx`, in a folder that is complete or missing."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.infra.storage.durable import new_folder
from baton.tasks.data.encode import IDS, LENGTHS
from baton.tasks.data.indexed_dataset import TokenDtype, write_index
from baton.tasks.data.rounds import NOTHING, Report

COPIED = 16 << 20  # bytes at a time


@dataclass(frozen=True)
class JoinItem:
    """A prefix to write, and its folder."""

    folder: Path  # its name is that of the prefix
    parts: Sequence[Path]  # encoded, in order
    dtype: TokenDtype


def join(item: JoinItem, report: Report) -> None:
    """Write a prefix unless it exists."""
    name = item.folder.name
    if item.folder.exists():
        return
    with new_folder(item.folder) as partial:
        lengths = partial / LENGTHS
        _joined([part / LENGTHS for part in item.parts], lengths)
        write_index(partial / f"{name}.idx", lengths, item.dtype)
        lengths.unlink()
        report(0.1, NOTHING)
        _joined([part / IDS for part in item.parts], partial / f"{name}.bin")
    report(1.0, NOTHING)


def _joined(paths: Sequence[Path], target: Path) -> None:
    """Concatenate files of the job; a single one is linked."""
    if len(paths) == 1:
        os.link(paths[0], target)
        return
    with target.open("wb") as joined:
        for path in paths:
            with path.open("rb") as part:
                shutil.copyfileobj(part, joined, COPIED)
