"""One machine's launcher of a job, as its stage starts it: python -m tests.posttrain.launcher JOB_DIR NODES"""

import json
import sys
from pathlib import Path

from infra.launch import Engine, run_engine

if __name__ == "__main__":
    job = Path(sys.argv[1])
    request = json.loads((job / "spec.json").read_text())
    stage = request["stage"]
    engine = Engine(stage, f"tasks.{stage}.{stage}", "test")
    run_engine(engine, job, request, title=stage, processes=1, nodes=int(sys.argv[2]), max_restarts=1)
