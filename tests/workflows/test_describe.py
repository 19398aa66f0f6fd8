"""The recipe's reference: a JSON schema for editors and a page for the docs."""

import json
import re
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from baton.workflows.continuous_training.recipe import ContinuousRecipe
from baton.workflows.dag.tasks import TASKS
from baton.workflows.describe import WITHOUT_FIELDS, find, main
from tests.source import ROOT

SCHEMA = ROOT / "workflows/recipes/schema.json"
REFERENCE = ROOT / "docs/reference/recipe.md"
RECIPES = sorted((ROOT / "workflows/recipes").rglob("*.yaml"))


def faults(recipe: Any) -> list[str]:
    """Return the errors that an editor would underline."""
    return [
        error.message for error in jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(recipe)
    ]


@pytest.mark.parametrize(("option", "path"), [("--json-schema", SCHEMA), ("--markdown", REFERENCE)])
def test_the_generated_file_is_current(capsys: pytest.CaptureFixture[str], option: str, path: Path) -> None:
    main([option], standalone_mode=False)
    assert path.read_text() == capsys.readouterr().out, f"run: baton describe {option} > {path}"


def test_the_reference_has_every_field_of_a_recipe() -> None:
    named = set(re.findall(r"^(?:## |\| `)(\w+)", REFERENCE.read_text(), re.MULTILINE))
    assert ContinuousRecipe.model_fields.keys() - named == set()


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


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("sft", "post_training[].sft:  # Supervised fine-tuning"),
        ("grpo.rewards", "post_training[].grpo.rewards:"),
        ("post_training.0.dpo.pairs", "post_training[].dpo.pairs:"),
        ("pretrain.model.layers", "pretrain.model.layers: 6  # Transformer layers"),
        ("data.chat.held_out", "data.<name>.held_out: "),
        ("evaluate.mine.prompts", "evaluate.<name>.prompts: "),
        ("evaluate-base", "evaluate:  # "),
        ("rows-chat", "data:  # "),
        ("load_hf", "start_from:  # "),
        ("sft-seed1", "post_training[].sft:  # "),
        ("pod", "pod:  # "),
        ("pod.resources.memory", "pod.resources.memory: "),
        ("corpus.source.kind", "corpus.source.kind: (required)  # one of stdlib, files, "),
        ("SFT", "post_training[].sft:  # "),
        ("seeds", "seeds: 1  # "),
    ],
)
def test_a_part_is_found_by_each_of_its_names(capsys: pytest.CaptureFixture[str], name: str, first: str) -> None:
    main([name], standalone_mode=False)
    assert capsys.readouterr().out.startswith(first)


@pytest.mark.parametrize("stage", TASKS)
def test_every_stage_is_a_part_or_has_no_fields(stage: str) -> None:
    assert find(stage) or stage in WITHOUT_FIELDS


def test_what_is_no_part_is_refused_with_what_is_near() -> None:
    with pytest.raises(click.BadParameter, match=r"'sfd' is no section, .*; did you mean sft"):
        main(["sfd"], standalone_mode=False)
    with pytest.raises(click.BadParameter, match=r"'data.chat.nothing' is no section, .*; known: name, corpus"):
        main(["data.chat.nothing"], standalone_mode=False)
