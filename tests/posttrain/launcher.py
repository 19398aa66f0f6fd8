"""Start a job's launcher on one machine, as its stage does: python -m tests.posttrain.launcher JOB_DIR NODES
[HELPERS]"""

import json
import sys
from pathlib import Path

from baton.infra.process.launch import Engine, run_engine

if __name__ == "__main__":
    job = Path(sys.argv[1])
    request = json.loads((job / "spec.json").read_text())
    stage = request["stage"]
    engine = Engine(
        stage, "baton.tasks.posttrain.engine", "test", helper="baton.tasks.posttrain.methods.grpo.rollout_node"
    )
    nodes, helpers = int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
    run_engine(engine, job, request, title=stage, processes=1, nodes=nodes, helpers=helpers, max_restarts=1)
