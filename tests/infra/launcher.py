"""A launcher that a test can kill:

python -m tests.infra.launcher MODULE JOB_DIR SPEC [PROCESSES [NODES [MAX_RESTARTS [APART]]]]   APART: 1 or 0
"""

import json
import sys
from pathlib import Path

from baton.infra.process.launch import Engine, run_engine


def request(spec: dict[str, object]) -> dict[str, object]:
    return {"stage": "toy", "kind": "toy", "spec": spec, "inputs": {}}


if __name__ == "__main__":
    module, job_dir, spec, *numbers = sys.argv[1:]
    processes, nodes, max_restarts, apart = [*map(int, numbers), None, None, None, None][:4]
    output = run_engine(
        Engine("toy", module, "1"),
        Path(job_dir),
        request(json.loads(spec)),
        title="toy",
        processes=processes,
        nodes=nodes or 1,
        max_restarts=max_restarts or 0,
        share_folder=not apart,
    )
    print(output)
