"""The recipes' JSON schema, for editors."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.source import ROOT
from workflows.describe import main

SCHEMA = ROOT / "workflows/recipes/schema.json"
RECIPES = sorted((ROOT / "workflows/recipes").rglob("*.yaml"))


def faults(recipe: Any) -> list[str]:
    """What an editor would underline."""
    return [
        error.message for error in jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(recipe)
    ]


def test_the_file_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--json-schema"])
    assert SCHEMA.read_text() == capsys.readouterr().out, "make it anew: see workflows/describe.py"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_a_shipped_recipe_names_the_schema_and_is_right_by_it(path: Path) -> None:
    first, *_ = path.read_text().splitlines()
    named = first.removeprefix("# yaml-language-server: $schema=")
    assert (path.parent / named).resolve() == SCHEMA
    assert faults(yaml.safe_load(path.read_text())) == []


@pytest.mark.parametrize(
    "recipe",
    [{"pretrain": {"step": 3}}, {"post_training": [{"sft": {"steps": "3"}}]}, {"evaluate": {"mine": {"prompt": 3}}}],
)
def test_an_editor_sees_what_is_wrong(recipe: dict[str, Any]) -> None:
    assert faults(recipe)
