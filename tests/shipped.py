"""The shipped recipes as data, with full paths: those in the files are relative to the files."""

import re
from typing import Any

import yaml

from tests.source import ROOT

FOLDER = ROOT / "workflows/recipes"


def shipped_text(name: str) -> str:
    """Return the text of a recipe, such as laptop.yaml."""
    path = FOLDER / name
    names = r"((?:\.\./)?(?:\w+/)*\w+\.py)(?=:\w)"
    return re.sub(names, lambda match: str((path.parent / match[1]).resolve()), path.read_text())


def shipped(name: str) -> dict[str, Any]:
    """Return the content of a recipe."""
    return dict(yaml.safe_load(shipped_text(name)))
