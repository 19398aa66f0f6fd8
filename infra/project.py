"""A project: the folder with a baton.toml, found from any folder below it.

    name = "mine"                              for its readers
    recipe = "recipe.yaml"                     of commands that name none
    home = ".baton"                            BATON_HOME
    tracking = "https://mlflow.example.org"    MLFLOW_TRACKING_URI
    storage = "s3://bucket/baton"              BATON_STORAGE
    image_registry = "registry.example.org"    BATON_IMAGE_REGISTRY

A variable that is set counts more than the file. Paths are relative to the file.
"""

import os
import tomllib
from pathlib import Path

from baton.infra.errors import UserError

FILE = "baton.toml"
VARIABLES = {
    "home": "BATON_HOME",
    "tracking": "MLFLOW_TRACKING_URI",
    "storage": "BATON_STORAGE",
    "image_registry": "BATON_IMAGE_REGISTRY",
}
FIELDS = ("name", "recipe", *VARIABLES)


def project_file() -> Path | None:
    """Return the file of the current folder's project, or None."""
    here = Path.cwd()
    return next((folder / FILE for folder in (here, *here.parents) if (folder / FILE).is_file()), None)


def settings() -> dict[str, str]:
    """Return the fields of the current folder's project, with absolute paths. Raises UserError."""
    file = project_file()
    if not file:
        return {}
    try:
        found = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as TOML: {error}") from error
    for name, value in found.items():
        if name not in FIELDS or not isinstance(value, str):
            raise UserError(f"{file}: {name} = {value!r}: only text for {', '.join(FIELDS)} is allowed")
    fields = {"home": ".baton"} | found
    for name in ("home", "recipe", "storage"):
        if name in fields and "://" not in fields[name]:
            fields[name] = str(file.parent / Path(fields[name]).expanduser())
    return fields


def apply() -> None:
    """Set the variables of the current folder's project that are not set yet, for this process and its children.
    Raises UserError."""
    for name, value in settings().items():
        if name in VARIABLES:
            os.environ.setdefault(VARIABLES[name], value)
