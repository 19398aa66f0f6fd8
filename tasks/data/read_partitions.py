"""The engine with which a pod reads and curates its share of a corpus' partitions, and leaves them in storage.

The corpus engine, in a pod that runs after those of all shares, finds them there (stored_scans.py) and reads itself
what is missing. Out: `partitions.json`, the keys of the share's partitions.

Facts: `partitions`, and their `documents` after curation and without copies within one.
"""

from infra.durable import write_json
from tasks.data.corpus import SCANS, Rounds, planned, scan_items
from tasks.data.decontaminate import with_indexes
from tasks.data.rounds import cores, dealt, workers
from tasks.data.scan import Scanned, scan
from tasks.data.spec import ShareSpec
from tasks.job import Job, main
from tasks.manifest import remove


def work(job: Job) -> None:
    share = job.spec(ShareSpec)
    spec = share.corpus.model_copy(update={"curate": with_indexes(job, share.corpus.curate)})
    job.empty_output()
    with workers(spec.partitions.concurrency or cores()) as pool:
        rounds = Rounds(job, pool)
        plan = planned(
            rounds, spec
        )  # large compressed files are cut in every pod whose share begins before another ends
        sizes = [max(1, part.size) for part in plan]
        mine = [number for number, machine in enumerate(dealt(sizes, share.machines)) if machine == share.number]
        items = scan_items(job, spec, [plan[number] for number in mine])
        folders = [item.folder for item in items]
        rounds.run("scan", scan, items, folders, [sizes[number] for number in mine])
    write_json(job.output / "partitions.json", [folder.name for folder in folders])
    documents = sum(Scanned.read(folder).rows for folder in folders)
    job.finish(partitions=len(items), documents=documents)
    remove(job.directory / SCANS)
    remove(job.work)


if __name__ == "__main__":
    main(work)
