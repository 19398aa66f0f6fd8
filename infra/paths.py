"""Baton's home folder on this machine: jobs, caches, the MLflow store, reports.

Set by `BATON_HOME`; the default is `.baton` in the project's folder (infra/project.py), or else in the current one, so
that `rm -r .baton` removes everything.
"""

import os
from pathlib import Path

from baton.infra.errors import UserError
from baton.infra.project import settings
from baton.infra.storage.durable import make_folder
from baton.infra.text import clause

IN_HOME = "home:"  # instead of the path of the home folder
REMOVED = "record/removed.json"  # in an artifact whose files `baton gc` has removed (tasks/core/removed.py)
FOLDERS = ("jobs", "models", "artifacts")  # folders of the home that have artifacts


def home_path() -> Path:
    """The absolute path of the home folder."""
    return _named_by("BATON_HOME") or Path(settings().get("home", ".baton")).absolute()


def baton_home() -> Path:
    """The home folder, created if missing. Raises UserError."""
    return _created(home_path(), "BATON_HOME")


def cache_folder(name: str) -> Path:
    """A folder for what can be downloaded again, in BATON_CACHE or the home folder; created if missing. Raises
    UserError."""
    cache = _named_by("BATON_CACHE")
    return _created(cache / name, "BATON_CACHE") if cache else _created(baton_home() / name, "BATON_HOME")


def _named_by(variable: str) -> Path | None:
    """The absolute path of a variable's folder; None: it is not set. Of a `.env` or Compose file, no shell expands the
    `~`. Raises UserError."""
    place = os.environ.get(variable)
    try:
        return Path(place).expanduser().absolute() if place else None
    except RuntimeError as error:  # ~name of nobody, or no HOME
        raise UserError(f"{variable}={place}: {clause(error)}. Set it to an absolute path") from error


def _created(folder: Path, variable: str) -> Path:
    try:
        if not folder.is_dir():  # raises for a name that is too long, or below a folder that may not be searched
            make_folder(folder)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be a folder: {(error.strerror or str(error)).lower()}. Set {variable} to one that this "
            "user can write to"
        ) from error
    return folder


def portable(place: str) -> str:
    """A place as it is stored: in the home folder, relative to it, so that the home can be moved."""
    path, home = Path(place), home_path()
    return f"{IN_HOME}{path.relative_to(home).as_posix()}" if path.is_relative_to(home) else place


def located(stored: str) -> str:
    """Return the current location of a stored place. An absolute path that no longer exists, stored before the home was
    moved, is searched for in the home; its readers check the content's digest."""
    if stored.startswith(IN_HOME):
        return str(home_path() / stored.removeprefix(IN_HOME))
    path = Path(stored)
    if "://" in stored or not path.is_absolute() or is_there(path):
        return stored
    for folder in FOLDERS:
        if folder in path.parts:
            at = len(path.parts) - 1 - path.parts[::-1].index(folder)
            if is_there(moved := home_path().joinpath(*path.parts[at:])):
                return str(moved)
    return stored


def is_there(path: Path) -> bool:
    """Return whether a recorded path exists and this user can look at it. For one in another user's folder, or one that
    is no possible file name here, Path.exists raises an error."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


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
