"""Baton's home folder on this machine: jobs, caches, the MLflow store, reports.

Set by `BATON_HOME`; the default is `.baton` in the current directory, so `rm -r .baton` removes everything.
"""

import os
from pathlib import Path

from infra.durable import make_folder


def home_path() -> Path:
    """The absolute path of the home folder."""
    return Path(os.environ.get("BATON_HOME", ".baton")).absolute()


def baton_home() -> Path:
    """The home folder, created if missing."""
    home = home_path()
    if not home.exists():
        make_folder(home)
    return home


# No telemetry unless the user opts in: set in every process, engines included
QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    "DO_NOT_TRACK": "1",
}


def quiet() -> None:
    """Turn off the libraries' telemetry, unless the user has set it."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
