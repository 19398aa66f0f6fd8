"""Try each step of a curation on a part of each source, and show what it would drop.

For a source in files, the part is taken from the start of the files in an order by a hash of their names; for others,
from the start. Near duplicates are found within the part, so the complete source has more. Sets of rows that a step
decontaminates against are prepared first, as in the run, unless they would have to be downloaded.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from blake3 import blake3

from baton.infra.progress import say
from baton.infra.text import share as percent
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.curate_spec import (
    CurateStep,
    NearDuplicatesStep,
    against_evaluation,
    around_near_duplicates,
    step_names,
)
from baton.tasks.data.curation_tally import Count, Tally
from baton.tasks.data.documents import Document
from baton.tasks.data.readers.raw import Broken, broken_text
from baton.tasks.data.source_spec import AnySource
from baton.tasks.data.spec import CorpusSpec
from baton.tasks.rows.spec import RowsSpec
from baton.tasks.user_code.load_function import forget

MOST_DOCUMENTS = 100_000  # of a source; all of them if its size is not known
MOST_BYTES = 100_000_000  # of a source's text, since the part is in memory
EXCERPT = 90  # characters


def tried(spec: CorpusSpec, part: float, evaluated: Mapping[str, RowsSpec]) -> Iterator[str]:
    """A table of each source, line by line. `evaluated`: the sets of rows that the evaluation uses. Raises StageError,
    StorageError."""
    needed = evaluated if against_evaluation(spec.curate) else {}
    local = {name: rows for name, rows in needed.items() if _is_local(rows)}
    for left_out in sorted(needed.keys() - local.keys()):
        yield f"decontaminate is tried without data.{left_out}, which the run downloads"
    with TemporaryDirectory() as root, _functions(Path(root)) as functions:
        spec = spec.pinned()
        steps = _with_indexes(spec.curate, local, Path(root))
        total = Tally()
        for number, (name, source) in enumerate(spec.by_name().items()):
            title = f"{name or 'source'}, {percent(part)}"
            say(f"reading {title} …")
            folder = Path(root) / f"source-{number}"
            folder.mkdir()
            broken = Broken()
            tally, read, left = _curated(source, name, steps, part, folder, functions, broken)
            yield f"\n{title}: {read:,} documents, {left:,} left"
            if broken:
                yield f"  {broken_text(broken)}"
            for step in step_names(steps):
                yield from _lines(step, tally.of(step, name))
            total.add(tally)
        try:
            total.check(steps)
        except StageError as error:
            yield f"\nthe run would be refused if all its text is like this: {error}"


@contextmanager
def _functions(root: Path) -> Iterator[Path]:
    """A folder for the users' functions of all sources: a process imports a file's name from one folder only."""
    folder = root / "functions"
    try:
        yield folder
    finally:
        forget(folder)


def _is_local(rows: RowsSpec) -> bool:
    return rows.huggingface is None or bool(rows.huggingface.source().state())


def _with_indexes(steps: list[CurateStep], evaluated: Mapping[str, RowsSpec], root: Path) -> list[CurateStep]:
    """The steps, checked and with indexes for decontamination; a step without anything to search for is left out."""
    from baton.tasks.core.job import Job
    from baton.tasks.data.classifier import check_classifiers
    from baton.tasks.data.decontaminate import with_indexes
    from baton.tasks.rows import rows

    check_classifiers(steps)
    inputs = {}
    for number, (name, spec) in enumerate(evaluated.items()):
        say(f"preparing data.{name} …")
        job = Job(root / f"rows-{number}", "rows", "rows", spec.pinned().model_dump(mode="json"), {})
        job.directory.mkdir()
        rows.work(job)
        inputs[f"against.{number}"] = {"path": str(job.output), "digest": read_manifest(job.output).digest}
    usable = []
    for step in steps:
        if step.decontaminate and not evaluated:
            places = [source.path for source in step.decontaminate.sources().values()]
            if not places:
                continue
            step = step.model_copy(update={"decontaminate": step.decontaminate.model_copy(update={"against": places})})
        usable.append(step)
    return with_indexes(Job(root / "corpus", "corpus", "corpus", {}, inputs), usable)


def _lines(step: str, count: Count) -> Iterator[str]:
    reasons = sorted(count.reasons.items(), key=lambda entry: (-entry[1], entry[0]))
    why = ", ".join(f"{reason} {number:,}" for reason, number in reasons[:5])
    yield f"  {step:<16}{count.documents:>10,} documents  {percent(count.share):>7} dropped  {why}".rstrip()
    for sample in [count.samples[reason][0] for reason, _ in reasons[:2]]:
        what = f" ({sample.what})" * bool(sample.what)
        yield f"    {sample.source}{what}: {' '.join(sample.text.split())[:EXCERPT]}"


def _curated(
    source: AnySource,
    name: str | None,
    steps: list[CurateStep],
    part: float,
    folder: Path,
    functions: Path,
    broken: Broken,
) -> tuple[Tally, int, int]:
    """The tally of the steps, and the numbers of documents that were read and that are left."""
    from baton.tasks.data.curate import Curation  # libraries that a plan without a sample does not need

    before, near, after = around_near_duplicates(steps)
    names = step_names(steps)
    tally, documents, read = Tally(), [], 0
    first = Curation(before, functions, names[: len(before)])
    for item in _part(source, part, functions, broken):
        read += 1
        if document := first.apply(item, name, tally):
            documents.append(document)
    if near:
        documents = _distinct(documents, near, folder, tally.of(names[len(before)], name))
    last = Curation(after, functions, names[len(names) - len(after) :])
    return tally, read, sum(last.apply(item, name, tally) is not None for item in documents)


def _part(source: AnySource, part: float, functions: Path, broken: Broken) -> Iterator[Document]:
    from baton.tasks.data.partitions import uncut
    from baton.tasks.data.scan import Counts, valid_document
    from baton.tasks.data.sources import read_source

    files = source.files() if not hasattr(source, "name") and hasattr(source, "files") else []
    pieces = uncut(sorted(files, key=lambda file: blake3(file.name.encode()).digest())) if files else None
    size = 0
    for number, raw in enumerate(read_source(source, broken, pieces, functions)):
        if number and (raw.done > part or number >= MOST_DOCUMENTS or size >= MOST_BYTES):
            return
        size += len(raw.text)
        if item := valid_document(raw, Counts()):
            yield item


def _distinct(documents: list[Document], step: NearDuplicatesStep, folder: Path, count: Count) -> list[Document]:
    """The documents that are not similar to an earlier one."""
    from baton.tasks.data.near_duplicates import NearWriter, near_drops, near_items

    writer = NearWriter(folder, step)
    for item in documents:
        writer.add(item)
    writer.close()
    dropped: dict[int, int] = {}
    for near_item in near_items([folder], step):
        dropped |= dict(near_drops([folder], near_item, step).tolist())
    for row, item in enumerate(documents):
        size = len(item.text.encode())
        count.documents += 1
        count.bytes += size
        if row in dropped:
            count.drop(item, size, "near duplicate", f"near duplicate of {documents[dropped[row]].source}")
    return [item for row, item in enumerate(documents) if row not in dropped]
