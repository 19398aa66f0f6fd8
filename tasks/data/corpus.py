"""The engine that reads one source, or several with names, into a corpus.

The sources are cut into partitions (partitions.py), on which worker processes work in rounds:

    split        cut large compressed files and crawls into several partitions, if there are any (split.py)
    scan         read, decode and curate each partition and drop copies within it (scan.py)
    known        for an increment: find what earlier corpora have (known_documents.py)
    duplicates   find copies over all partitions, by ranges of hashes (exact_duplicates.py)
    near         find near duplicates over all partitions, if the curation has such a step (near_duplicates.py)
    write        write each partition's remaining documents, after the steps that follow near duplicates (write.py)

and whose results are assembled in the order of the sources' names and of the partitions. So the corpus does not
depend on the number of workers, and a killed engine continues with the missing results. Several machines that a
placement has started share the work of each round; the first assembles the corpus. Documents that are not UTF-8, have
NUL characters or are only white space are counted and skipped; of duplicates the first is kept. No process has all
documents or all hashes in memory.

With named sources, each has its own files in the train split, which pretraining blends by weight. There is one held-out
split, with the sources' documents mixed evenly, so that any first part of it represents all of them. A document's
`source` begins with its source's name: "web/pages.jsonl#17".

With `curate`, `record/curation.json` has the effect of each step on each source; `record/partitions.json` lists the
scans that the corpus was made from.

Facts: `documents` and `bytes` are those of the train split; `held_out_documents` and `held_out_bytes` those of the
held-out split; `duplicates`, `empty` and `invalid_utf8` count the skipped documents; `sources` has documents and bytes
of each named source; `curation` has the number of documents that each step saw, dropped and changed; `broken` counts
the files with skipped content and `broken_records` the skipped records, which `record/broken.json` lists.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

from baton.infra.process.limits import cores
from baton.infra.process.torchrun_env import placed_nodes, this_node
from baton.infra.storage.durable import make_folder, remove
from baton.infra.versions import package_versions
from baton.tasks.core.job import Input, Job, StageError, main
from baton.tasks.core.manifest import json_key
from baton.tasks.data.assemble import assemble
from baton.tasks.data.classifier import check_classifiers
from baton.tasks.data.curate_spec import around_near_duplicates, step_names
from baton.tasks.data.curation_tally import Tally
from baton.tasks.data.decontaminate import with_indexes
from baton.tasks.data.exact_duplicates import DropsItem, Places, exact_drops, find_drops, hash_ranges
from baton.tasks.data.known_blocks import names_cache
from baton.tasks.data.known_documents import KnownItem, find_known
from baton.tasks.data.machines import Rounds, Span
from baton.tasks.data.near_duplicates import near_drops, near_items
from baton.tasks.data.partition_cache import disk_cache
from baton.tasks.data.partitions import Partition, partitions
from baton.tasks.data.rounds import Ended, wait_for, workers
from baton.tasks.data.scan import ScanItem, Scanned, scan
from baton.tasks.data.spec import CorpusSpec
from baton.tasks.data.split import pieces_of, split, split_item
from baton.tasks.data.stored_folders import stored
from baton.tasks.data.write import WriteItem, write

SCAN_VERSION = 6  # raise it when the scan of the same partition would have another result
LIBRARIES = (  # those that affect the result of a scan
    "datatrove",
    "fasttext-numpy2-wheel",
    "fastwarc",
    "lingua-language-detector",
    "pyarrow",
    "rensa",
    "resiliparse",
)
SCANS = "scans"  # in the job's folder; not in work/, whose complete folders tasks/core/offsite.py would send too
ROUNDS = {
    "split": Span(0, 4, "files"),
    "scan": Span(4, 78, "partitions"),
    "known": Span(78, 80, "comparisons"),
    "duplicates": Span(80, 83, "ranges"),
    "near": Span(83, 90, "ranges"),
    "write": Span(90, 100, "partitions", last=True),
}


def work(job: Job) -> None:
    make_corpus(job, None)


def make_corpus(job: Job, earlier: Sequence[Input] | None) -> None:
    """Make the corpus; with `earlier` ones, oldest first, the increment to them. Raises StageError."""
    spec = job.spec(CorpusSpec)
    if problems := spec.problems():
        raise StageError("\n".join(map(str, problems)))
    machine = this_node(placed_nodes(spec.partitions.machines))
    for line in [] if machine.rank else spec.unread():
        job.notice(line)
    check_classifiers(spec.curate)
    spec = spec.model_copy(update={"curate": with_indexes(job, spec.curate)})
    if machine.nodes == 1:  # others may be at work
        for left in (*job.work.rglob("*.partial"), *(job.directory / SCANS).glob("*.partial")):  # by a killed engine
            remove(left)
    with workers(spec.partitions.concurrency) as pool:
        rounds = Rounds(job, ROUNDS, pool, machine)
        with suppress(Ended):
            make(job, spec, planned(rounds, spec), rounds, earlier)
    if machine.rank:
        wait_for([job.directory / "result.json"], lambda _: None)
        return
    remove(job.work)
    remove(job.directory / SCANS)


def planned(rounds: Rounds, spec: CorpusSpec) -> list[Partition]:
    """The partitions of all sources, after large compressed files have been cut."""
    sources, target = spec.by_name(), spec.partitions.target()
    plan = [part for name, source in sources.items() for part in partitions(name, source, target)]
    folder, cache = scans_folder(rounds.job), stored(rounds.job)
    items = {part: item for part in plan if (item := split_item(sources[part.source], part, target, folder, cache))}
    if items:
        made, sizes = [item.folder for item in items.values()], [item.file.size for item in items.values()]
        rounds.run("split", split, list(items.values()), made, sizes)
    return [new for part in plan for new in (pieces_of(items[part], part) if part in items else [part])]


def make(job: Job, spec: CorpusSpec, plan: list[Partition], rounds: Rounds, earlier: Sequence[Input] | None) -> None:
    """Make the corpus of the partitions and, on the first machine, seal it."""
    before, near, after = around_near_duplicates(spec.curate)
    scans = scan_all(rounds, spec, plan)
    tally, documents = Tally(), 0
    for part, scanned in zip(plan, map(Scanned.read, scans), strict=True):
        _refuse_skipped(spec, part, scanned)
        tally.add(scanned.tally)
        documents += scanned.rows
    tally.check(before)
    # the content of this folder depends on all partitions
    folder = job.work / f"{json_key([[path.name for path in scans], [step.identity() for step in spec.curate]])}.rounds"
    folder.mkdir(exist_ok=True)
    known = None
    if earlier is not None:
        threads = min(2, spec.partitions.concurrency or cores())
        known = KnownItem(folder / "known", earlier, scans, list(spec.sources), names_cache(job), threads)
        rounds.run("known", find_known, [known], [known.folder], [1])
    masks = [known.masks(number) for number in range(len(plan))] if known else None
    exact = [partial(exact_drops, scans, hash_range) for hash_range in hash_ranges(documents)]
    duplicates = find(rounds, "duplicates", folder, exact)
    similar = [partial(near_drops, scans, item, near, masks) for item in near_items(scans, near)] if near else []
    near_duplicates = find(rounds, "near", folder, similar)
    names = step_names(spec.curate)
    writes = [
        WriteItem(
            folder=folder / f"{number:05}.write",
            scan=scan,
            number=number,
            source=part.source,
            duplicates=duplicates,
            near_duplicates=near_duplicates,
            scans=scans,
            near=names[len(before)] if near else None,
            steps=after,
            names=names[len(names) - len(after) :],
            functions=job.work / "functions",
            known=masks[number] if masks else None,
        )
        for number, (part, scan) in enumerate(zip(plan, scans, strict=True))
    ]
    folders = [item.folder for item in writes]
    rounds.run("write", write, writes, folders, [max(1, part.size) for part in plan])
    if not rounds.machine.rank:
        job.empty_output()
        rounds.record()
        assemble(job, spec, plan, scans, folders, known)


def find(rounds: Rounds, name: str, folder: Path, items: Sequence[Callable[[], Places]]) -> list[Path]:
    """Run a round that finds drops; returns their files."""
    drops = [DropsItem(folder / f"{name}-{number:05}.npy", item) for number, item in enumerate(items)]
    if drops:
        rounds.run(name, find_drops, drops, [item.target for item in drops], [1] * len(drops))
    return [item.target for item in drops]


def scan_all(rounds: Rounds, spec: CorpusSpec, plan: list[Partition]) -> list[Path]:
    """The folders of the scanned partitions, in order."""
    if not rounds.machine.rank:
        disk_cache().make_room()
    items = scan_items(rounds.job, spec, plan)
    folders = [item.folder for item in items]
    rounds.run("scan", scan, items, folders, [max(1, part.size) for part in plan])
    return folders


def scan_items(job: Job, spec: CorpusSpec, plan: list[Partition]) -> list[ScanItem]:
    """The scans of the partitions. In a pod, all of them are stored for other pods and other corpora; elsewhere, those
    of sources with several partitions are kept for other corpora."""
    folder = scans_folder(job)
    sources = spec.by_name()
    number = {name: sum(part.source == name for part in plan) for name in sources}
    steps, near, _ = around_near_duplicates(spec.curate)
    return [
        ScanItem(
            folder=folder / f"{_key(spec, part)}.scan",
            partition=part,
            source=sources[part.source],
            steps=steps,
            near=near,
            held_out=spec.held_out,
            functions=job.work / "functions",
            cache=stored(job) or (disk_cache() if number[part.source] > 1 else None),
        )
        for part in plan
    ]


def _refuse_skipped(spec: CorpusSpec, part: Partition, scanned: Scanned) -> None:
    """Raise StageError if the partition was scanned for another corpus, with on_broken: skip, and skipped content."""
    if scanned.broken and getattr(spec.by_name()[part.source], "on_broken", "skip") == "stop":
        raise StageError("; ".join(map(str, scanned.broken.values())))


def scans_folder(job: Job) -> Path:
    folder = job.directory / SCANS
    make_folder(folder)
    return folder


def _key(spec: CorpusSpec, part: Partition) -> str:
    """A digest of all that the scan of a partition depends on."""
    source = spec.by_name()[part.source]
    steps, near, _ = around_near_duplicates(spec.curate)
    identity = [
        SCAN_VERSION,
        _versions(),
        source.model_dump(mode="json", exclude={"weight", "epochs", "on_broken"}),
        [step.model_copy(update={"max_dropped": 1.0}).identity() for step in steps],
        near and near.identity(),
        spec.held_out,
        part.source,
        [
            (piece.file.place, piece.file.name, piece.file.size, piece.file.version, piece.start, piece.end)
            for piece in part.pieces
        ]
        or spec.state,
    ]
    return json_key(identity)


@cache
def _versions() -> dict[str, str]:
    return package_versions() | {name: version(name) for name in LIBRARIES}


if __name__ == "__main__":
    main(work)
