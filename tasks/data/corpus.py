"""The engine that reads one source, or several with names, into a corpus.

The sources are cut into partitions (partitions.py), on which worker processes work in rounds:

    split        cut large compressed files into several partitions, if there are any (split.py)
    scan         read, decode and curate each partition and drop copies within it (scan.py)
    duplicates   find copies over all partitions, by ranges of hashes (exact_duplicates.py)
    near         find near duplicates over all partitions, if a step of the curation says so (near_duplicates.py)
    write        write each partition's documents that are left, after the steps behind near duplicates (write.py)

and whose results are put together in the order of the sources' names and of the partitions. So the corpus does not
depend on the number of workers, and a killed engine continues with what is missing. Several machines that a placement
has started share the work of each round; the first puts the corpus together. Documents that are not UTF-8 or
only white space are counted and skipped; of duplicates the first is kept. No process has all documents or all hashes in
memory.

With named sources, each has its own files in the train split, which pretraining blends by weight. The held-out split
is one, with the sources' documents mixed evenly, so that any first part of it represents all of them. A document's
`source` begins with its source's name: "web/pages.jsonl#17".

With `curate`, `record/curation.json` has what each step did to each source.

Facts: `documents` and `bytes` are the train split's; `held_out_documents` and `held_out_bytes` the held-out split's;
`duplicates`, `empty` and `invalid_utf8` count the skipped documents; `sources` has documents and bytes of each named
source; `curation` how many documents each step saw, dropped and changed; `broken` counts the files that were skipped
as broken, which `record/broken.json` lists.
"""

import json
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from blake3 import blake3

from infra.durable import make_folder
from infra.paths import baton_home
from infra.torchrun_env import Node, placed_nodes, this_node
from infra.versions import package_versions
from tasks.data.assemble import assemble
from tasks.data.curate_spec import around_near_duplicates, step_names
from tasks.data.curation_tally import Tally
from tasks.data.decontaminate import with_indexes
from tasks.data.exact_duplicates import DropsItem, Places, exact_drops, find_drops, hash_ranges
from tasks.data.kept_scans import KeptScans
from tasks.data.near_duplicates import near_drops, near_items
from tasks.data.partitions import Partition, partitions
from tasks.data.rounds import Progress, Work, Workers, cores, dealt, wait_for, workers
from tasks.data.scan import ScanItem, Scanned, scan
from tasks.data.spec import CorpusSpec
from tasks.data.split import pieces_of, split, split_item
from tasks.data.stored_scans import StoredScans
from tasks.data.write import WriteItem, write
from tasks.job import Job, StageError, main
from tasks.manifest import remove

SCAN_VERSION = 1  # raise it when the scan of the same partition would have another result
LIBRARIES = ("datatrove", "fastwarc", "lingua-language-detector", "pyarrow", "rensa", "resiliparse")  # that shape it
SCANS = "scans"  # in the job's folder; not in work/, whose complete folders tasks/offsite.py would send too
ROUNDS = {
    "split": (0, 4),
    "scan": (4, 80),
    "duplicates": (80, 83),
    "near": (83, 90),
    "write": (90, 100),
}  # from and to which percentage, about
LAST = "write"

T = TypeVar("T")


def work(job: Job) -> None:
    spec = job.spec(CorpusSpec)
    if problems := spec.problems():
        raise StageError("\n".join(map(str, problems)))
    machine = this_node(placed_nodes(spec.partitions.machines))
    spec = spec.model_copy(update={"curate": with_indexes(job, spec.curate)})
    if machine.nodes == 1:  # others may be at work
        for left in (*job.work.rglob("*.partial"), *(job.directory / SCANS).glob("*.partial")):  # by a killed engine
            remove(left)
    with workers(spec.partitions.concurrency or cores()) as pool:
        rounds = Rounds(job, pool, machine)
        make(job, spec, planned(rounds, spec), rounds)
    if machine.rank:
        wait_for([job.directory / "result.json"], lambda _: None)
        return
    remove(job.work)
    remove(job.directory / SCANS)


def planned(rounds: "Rounds", spec: CorpusSpec) -> list[Partition]:
    """The partitions of all sources, after those that are large compressed files have been cut."""
    sources, target = spec.by_name(), spec.partitions.target()
    plan = [part for name, source in sources.items() for part in partitions(name, source, target)]
    folder, stored = scans_folder(rounds.job), stored_scans(rounds.job)
    items = {part: item for part in plan if (item := split_item(sources[part.source], part, target, folder, stored))}
    if items:
        made, sizes = [item.folder for item in items.values()], [item.file.size for item in items.values()]
        rounds.run("split", split, list(items.values()), made, sizes)
    return [new for part in plan for new in (pieces_of(items[part].folder, part) if part in items else [part])]


def make(job: Job, spec: CorpusSpec, plan: list[Partition], rounds: "Rounds") -> None:
    """Make the corpus of the partitions and, on the first machine, seal it."""
    before, near, after = around_near_duplicates(spec.curate)
    scans = scan_all(rounds, spec, plan)
    tally, documents = Tally(), 0
    for scanned in map(Scanned.read, scans):
        tally.add(scanned.tally)
        documents += scanned.rows
    tally.check(before)
    # what this folder has depends on all partitions
    folder = job.work / f"{_digest([[path.name for path in scans], [step.identity() for step in spec.curate]])}.rounds"
    folder.mkdir(exist_ok=True)
    duplicates = find(rounds, "duplicates", folder, [partial(exact_drops, scans, of) for of in hash_ranges(documents)])
    of_near = [partial(near_drops, scans, item, near) for item in near_items(scans, near)] if near else []
    near_duplicates = find(rounds, "near", folder, of_near)
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
        )
        for number, (part, scan) in enumerate(zip(plan, scans, strict=True))
    ]
    folders = [item.folder for item in writes]
    rounds.run("write", write, writes, folders, [max(1, part.size) for part in plan])
    if not rounds.machine.rank:
        job.empty_output()
        assemble(job, spec, plan, scans, folders)


def find(rounds: "Rounds", name: str, folder: Path, items: Sequence[Callable[[], Places]]) -> list[Path]:
    """Run a round that finds drops; returns their files."""
    drops = [DropsItem(folder / f"{name}-{number:05}.npy", item) for number, item in enumerate(items)]
    if drops:
        rounds.run(name, find_drops, drops, [item.target for item in drops], [1] * len(drops))
    return [item.target for item in drops]


@dataclass
class Rounds:
    """Runs the rounds, shows their progress and notes their speed. Of several machines, which share the job's folder,
    each works on its share of a round, and begins the next when all are done."""

    job: Job
    pool: Workers
    machine: Node = field(default_factory=Node)

    def run(self, name: str, work: Work[T], items: Sequence[T], made: Sequence[Path], sizes: Sequence[int]) -> None:
        """Work on the items, which make these files or folders."""
        start, end = ROUNDS[name]
        unit = "partitions" if name in ("scan", "write") else "ranges"

        def show(progress: Progress) -> None:
            if self.machine.rank:
                return
            shown = {unit: f"{progress.done:,}/{len(items):,}", "documents": f"{progress.documents:,}"}
            self.job.progress(start + (end - start) * progress.fraction, 100, "%", round=name, **shown)

        began = time.monotonic()
        mine = [number for number, rank in enumerate(dealt(sizes, self.machine.nodes)) if rank == self.machine.rank]
        documents = self.pool.run(work, [items[number] for number in mine], [sizes[number] for number in mine], show)
        if name == LAST and self.machine.rank:
            return  # the first machine may have removed what was made
        wait_for(made, lambda done: show(Progress(done / len(items), done, documents)))
        took = max(1e-6, time.monotonic() - began)
        memory = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        print(
            f"{name}: {len(items):,} {unit} in {took:.1f} s, {documents:,} documents ({documents / took:,.0f}/s), "
            f"largest process so far {memory / 1e3:,.0f} MB",
            flush=True,
        )


def scan_all(rounds: Rounds, spec: CorpusSpec, plan: list[Partition]) -> list[Path]:
    """The folders of the scanned partitions, in order."""
    items = scan_items(rounds.job, spec, plan)
    folders = [item.folder for item in items]
    rounds.run("scan", scan, items, folders, [max(1, part.size) for part in plan])
    if not rounds.machine.rank:
        local_scans().forget_old()
    return folders


def scan_items(job: Job, spec: CorpusSpec, plan: list[Partition]) -> list[ScanItem]:
    """The scans of the partitions. In a pod all are in storage, for other pods and other corpora; elsewhere those of
    sources with several are kept for other corpora."""
    folder, stored = scans_folder(job), stored_scans(job)
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
            kept=stored or (local_scans() if number[part.source] > 1 else None),
        )
        for part in plan
    ]


def scans_folder(job: Job) -> Path:
    folder = job.directory / SCANS
    make_folder(folder)
    return folder


def stored_scans(job: Job) -> StoredScans | None:
    """Those of all pods, in a pod."""
    return StoredScans(f"{job.storage}/partitions") if job.storage else None


def local_scans() -> KeptScans:
    return KeptScans(baton_home() / "partitions")


def _key(spec: CorpusSpec, part: Partition) -> str:
    """A digest of all that the scan of a partition depends on."""
    source = spec.by_name()[part.source]
    steps, near, _ = around_near_duplicates(spec.curate)
    said = [
        SCAN_VERSION,
        package_versions() | {name: version(name) for name in LIBRARIES},
        source.model_dump(mode="json", exclude={"weight", "epochs"}),
        [step.identity() for step in steps],
        near and near.identity(),
        spec.held_out,
        part.source,
        [
            (piece.file.place, piece.file.name, piece.file.size, piece.file.version, piece.start, piece.end)
            for piece in part.pieces
        ]
        or spec.state,
    ]
    return _digest(said)


def _digest(said: Any) -> str:
    return blake3(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


if __name__ == "__main__":
    main(work)
