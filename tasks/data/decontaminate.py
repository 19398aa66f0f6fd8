"""The items that a corpus must not contain: held-out rows of an evaluation, and files."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from baton.tasks.core.job import Job, StageError
from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.contamination import COMMON, SHORTEST, write_index
from baton.tasks.data.curate_spec import EVALUATE, CurateStep, DecontaminateStep
from baton.tasks.data.readers.columnar import parquet_records
from baton.tasks.data.readers.jsonl import jsonl_records
from baton.tasks.data.source_spec import JSONL_SUFFIXES, PARQUET_SUFFIXES

NOT_TEXT = ("role", "id", "type", "name")  # keys of a row whose values are in many rows


def with_indexes(job: Job, steps: list[CurateStep]) -> list[CurateStep]:
    """The steps, with an index on disk for each decontamination. Raises StageError."""
    return [
        step.model_copy(update={"decontaminate": _indexed(job, number, step.decontaminate)})
        if step.decontaminate
        else step
        for number, step in enumerate(steps)
    ]


def _indexed(job: Job, number: int, step: DecontaminateStep) -> DecontaminateStep:
    rank = os.environ.get("NODE_RANK", "0")  # machines may share the job's folder
    folder = job.work / f"contamination-{number}-{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    about = write_index(folder, _items(job, step), step.ngram)
    if not about.items:
        raise StageError(f"curate.{number} (decontaminate): no items in {', '.join(step.against)}")
    items = f"{about.items:,} items of {', '.join(step.against)}"
    print(f"decontaminate: {items}", flush=True)
    if about.too_short:
        notice = (
            f"curate.{number} (decontaminate): {about.too_short:,} of {items} are not searched for, since none of "
            f"their texts has {min(SHORTEST, step.ngram)} words"
        )
        if about.too_short == about.items:
            raise StageError(
                f"{notice}. Use longer ones, lower ngram (5 finds texts of 5 words), or leave out the step"
            )
        print(notice, flush=True)
        job.notice(notice)
    if about.common:
        job.notice(
            f"curate.{number} (decontaminate): less than half of {about.common:,} of {items}, such as "
            f"{about.first_common}, is searched for, since more than {COMMON} texts share the rest: an instruction, or "
            "a passage with many questions, which would be found as a separate field"
        )
    return step.model_copy(update={"state": about.digest, "index": str(folder)})


def _items(job: Job, step: DecontaminateStep) -> Iterator[tuple[str, list[str]]]:
    """The names and texts of the items."""
    files = step.sources()
    for number, place in enumerate(step.against):
        if place == EVALUATE:
            sets = job.input_list("against")
            if not sets:
                raise StageError("decontaminate: against: [evaluate] needs the evaluation's rows, which this run lacks")
            for folder in sets:
                with (folder / "held_out.jsonl").open(encoding="utf-8") as lines:
                    for row, line in enumerate(lines, start=1):
                        yield f"{_title(folder)}, held-out row {row}", list(texts_of(json.loads(line)))
            continue
        for file in files[number].files():
            records: Iterator[Any]
            if file.name.endswith(JSONL_SUFFIXES):
                records = jsonl_records(file)
            elif file.name.endswith(PARQUET_SUFFIXES):
                records = parquet_records(file)
            else:
                with file.open() as opened:
                    records = iter([opened.read().decode("utf-8", "replace")])
            for row, record in enumerate(records, start=1):
                yield f"{file.name}, row {row}", list(texts_of(record))


def _title(folder: Path) -> str:
    """The name of the source of a set of rows."""
    spec = read_manifest(folder).spec
    source = spec.get("path") or spec.get("huggingface") or spec.get("function") or {}
    if isinstance(source, str):
        return source.rpartition("/")[2] or source
    return str(source.get("name"))


def texts_of(value: Any) -> Iterator[str]:
    """The texts in a row of JSON types; system prompts, which many rows share, are left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        if value.get("role") != "system":
            for key, inner in value.items():
                if key not in NOT_TEXT:
                    yield from texts_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner)
