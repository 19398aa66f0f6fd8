"""Post-training engines as ranks that are forked from a process with the libraries loaded (tests/forked.py)."""

import json
import os
import sys
from pathlib import Path

import tests.posttrain.tiny  # noqa: F401 - it names the libraries
from tests.pretrain import ranks


def engine(job: Path) -> ranks.Ranks:
    """An engine on a job, in the layout of its spec; GRPO gets its rollouts from recorded.py."""
    layout = json.loads((job / "spec.json").read_text())["spec"]["layout"]
    return ranks.Ranks(layout["processes"], job, _engine, job)


def _engine(job: Path) -> None:
    os.environ["TORCHELASTIC_RUN_ID"] = "tests"  # read when tasks.posttrain.process is imported
    from tasks.job import main
    from tests.posttrain.parity import train

    sys.argv = ["tests.posttrain.ranks", str(job)]
    main(train)
