"""Run a small execution in a separate process: `python -m tests.tracking.one_execution NAME JOB_DIR POINTS [hang]`.
With `cached`, POINTS is the number of stages from the cache, and the execution ends without output, as a run does."""

import json
import sys
import time
from pathlib import Path

from baton.infra.tracking.execution import begin_execution, end_execution, flush
from baton.infra.tracking.record import note_cached, tracked


def write_points(job_dir: Path, steps: range, pause_s: float = 0.0) -> None:
    """Append points to metrics.jsonl as an engine does."""
    job_dir.mkdir(parents=True, exist_ok=True)
    for step in steps:
        with (job_dir / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps({"step": step, "time": time.time(), "loss": 1 / (step + 1)}) + "\n")
        time.sleep(pause_s)


if __name__ == "__main__":
    name, job_dir, points = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    begin_execution(name, {"name": name})
    if "cached" in sys.argv:
        for number in range(points):
            note_cached(f"stage {number}", "corpus", f"{number:064}", {"documents": 5}, spec={"seed": number})
        sys.exit()
    with tracked("pretrain", job_dir, spec={"steps": points}, inputs={}) as record:
        write_points(job_dir, range(points), pause_s=0.001)
        if "hang" in sys.argv:
            flush(60)
            print("pushed", flush=True)
            time.sleep(600)
        record.log_output("checkpoint", "c" * 64, {})
    end_execution()
    flush(60)
