"""An engine that sums the ranks' numbers with a gloo all-reduce under torchrun. Its last rank can fail first."""

import os
import signal
import time
from typing import Literal

import torch
import torch.distributed as dist

from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.spec import Spec


class RanksSpec(Spec):
    last_rank: Literal["works", "raises", "refuses", "is killed", "waits"] = "works"


def work(job: Job) -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([float(rank + 1)])
    if rank == ranks - 1:
        _last(job, job.spec(RanksSpec).last_rank)
    dist.all_reduce(total)
    if rank == 0:
        job.output.mkdir(exist_ok=True)
        (job.output / "total.txt").write_text(f"{total.item():g} from {ranks} ranks")
        job.finish()
    dist.destroy_process_group()


def _last(job: Job, what: str) -> None:
    match what:
        case "raises":
            raise ValueError("rank-specific trouble")
        case "refuses":
            raise StageError("the last rank has no data: take fewer ranks")
        case "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "waits":
            (job.work / "ready").touch()
            time.sleep(600)


if __name__ == "__main__":
    main(work)
