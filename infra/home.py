"""Where Baton keeps what it makes on this machine: jobs, caches, the MLflow store, reports.

`BATON_HOME` names the folder; the default is `.baton` in the current directory, so that a clone
keeps to itself and `rm -r .baton` forgets everything.
"""

import os
from pathlib import Path

from infra.durable import make_folder


def home_path() -> Path:
    """The absolute path of the home folder."""
    return Path(os.environ.get("BATON_HOME", ".baton")).absolute()


def baton_home() -> Path:
    """The home folder, made if it is not there."""
    home = home_path()
    if not home.exists():
        make_folder(home)
    return home


# Nothing that Baton runs sends anything anywhere unasked: set in every process, engines included.
QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    "DO_NOT_TRACK": "1",
}


def quiet() -> None:
    """Turn off the telemetry of every library that has one, unless the user has said otherwise."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
