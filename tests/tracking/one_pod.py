"""Run a pod of a Flyte cluster that shares nothing: `python -m tests.tracking.one_pod TITLE JOB [begin|last|fail|…]…
--raw-output-data-prefix s3://raw/ab/POD`. Its home is new; the execution is in its environment, as in Flyte."""

import sys
import tempfile
import time
from pathlib import Path

from baton.infra.process.launch import sigterm_as_exit
from baton.infra.tracking.execution import begin_execution, flush, mark_last
from baton.infra.tracking.record import tracked
from tests.tracking.one_execution import write_points


def main(title: str, job: str, *what: str) -> None:
    if "begin" in what:
        begin_execution("nightly", {"name": "nightly", "pretrain": {"steps": 3}})
        return
    if "last" in what:
        mark_last()
    if not title:
        return
    job_dir = Path(tempfile.mkdtemp()) / "jobs" / job
    with sigterm_as_exit(), tracked(title, job_dir, spec={"steps": 3}, inputs={}) as record:
        write_points(job_dir, range(3))
        if "hang" in what or "live on" in what:
            flush(60)
            print("pushed", flush=True)
            sys.stdin.readline() if "live on" in what else time.sleep(600)
        if "fail" in what:
            raise RuntimeError("no such column")
        record.log_output("checkpoint", job.ljust(64, "0"), {})


if __name__ == "__main__":
    main(*sys.argv[1 : sys.argv.index("--raw-output-data-prefix")])
