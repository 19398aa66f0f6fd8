"""An engine that fails as the spec requires."""

import atexit
import os
import signal
import threading
from typing import Literal

from baton.infra.errors import UserError
from baton.infra.process.logs import LINES
from baton.infra.storage.durable import new_folder
from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.spec import Spec

ADDRESS = "401 for https://judge.example.org/v1?api_key=hunter22, Authorization: Bearer hunter22hunter22"


class FailingSpec(Spec):
    how: Literal[
        "stage error", "bug", "killed", "no shared memory", "silent", "exit 0", "full disk",
        "full disk of an open file", "no GPU memory", "stopped",
        "address in a bug", "address in a stage error", "address in a thread",
    ]  # fmt: skip


def work(job: Job) -> None:
    print("about to fail")
    match job.spec(FailingSpec).how:
        case "stage error":
            raise StageError("no prompt is left: take more modules (spec.modules)")
        case "bug":
            _divide(1, 0)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "no shared memory":
            os.kill(os.getpid(), signal.SIGBUS)
        case "silent":
            raise SystemExit(3)
        case "exit 0":
            raise SystemExit(0)
        case "full disk":
            (job.work / "big").write_bytes(bytes(1 << 26))
        case "full disk of an open file":  # the space is free again when the process has ended
            atexit.register(print, "a library's last words\n" * LINES)
            with new_folder(job.work / "new") as folder:
                stream = (folder / "big").open("wb", buffering=0)
                while stream.write(bytes(4096)):
                    pass
        case "no GPU memory":  # torch.OutOfMemoryError has this message
            raise RuntimeError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"
            )
        case "address in a bug":
            raise ValueError(ADDRESS)
        case "address in a stage error":
            job.notice(ADDRESS)
            raise StageError(ADDRESS)
        case "address in a thread":
            thread = threading.Thread(target=_refuse)
            thread.start()
            thread.join()
            _refuse()
        case "stopped":
            raise UserError("no folder can be made there")


def _refuse() -> None:
    raise RuntimeError(ADDRESS)


def _divide(one: int, other: int) -> float:
    return one / other


if __name__ == "__main__":
    main(work)
