"""The engine with which a pod reads and curates its share of a corpus' partitions (shares.py).

The corpus engine, whose pod runs after those of all shares, finds the results in storage (stored_folders.py) and reads
the missing partitions itself.
"""

from baton.infra.storage.durable import remove
from baton.tasks.core.job import Job, main
from baton.tasks.data.classifier import check_classifiers
from baton.tasks.data.corpus import ROUNDS, SCANS, planned, scan_items
from baton.tasks.data.decontaminate import with_indexes
from baton.tasks.data.machines import Rounds
from baton.tasks.data.rounds import workers
from baton.tasks.data.scan import scan
from baton.tasks.data.shares import items_of_share, make_share
from baton.tasks.data.spec import ReadShareSpec


def work(job: Job) -> None:
    share = job.spec(ReadShareSpec)
    check_classifiers(share.corpus.curate)
    spec = share.corpus.model_copy(update={"curate": with_indexes(job, share.corpus.curate)})
    job.empty_output()
    with workers(spec.partitions.concurrency) as pool:
        plan = planned(Rounds(job, ROUNDS, pool), spec)  # a large file is cut by each pod that begins before one ends
    sizes = [max(1, part.size) for part in plan]
    mine = items_of_share(share, scan_items(job, spec, plan), sizes)
    make_share(job, scan, mine, spec.partitions.concurrency)
    remove(job.directory / SCANS)
    remove(job.work)


if __name__ == "__main__":
    main(work)
