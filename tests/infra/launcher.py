"""A launcher that a test can kill: python -m tests.infra.launcher MODULE JOB_DIR SPEC [PROCESSES]"""

import json
import sys
from pathlib import Path

from infra.launch import Engine, run_engine


def request(spec: dict[str, object]) -> dict[str, object]:
    return {"stage": "toy", "kind": "toy", "spec": spec, "inputs": {}}


if __name__ == "__main__":
    module, job_dir, spec, *processes = sys.argv[1:]
    output = run_engine(
        Engine("toy", module, "1"),
        Path(job_dir),
        request(json.loads(spec)),
        title="toy",
        processes=int(processes[0]) if processes else None,
    )
    print(output)
