"""The command `baton`, and the projects that `baton init` writes."""

import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import click
import pytest
from click.testing import CliRunner

from baton.workflows.command_line import COMMANDS, main
from baton.workflows.init import KINDS
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.text import load
from tests.posttrain.tiny import tiny_model


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_of_the_table_has_help(name: str) -> None:
    assert isinstance(resolve_name(COMMANDS[name][0]), click.Command)
    done = CliRunner().invoke(main, [name, "--help"])
    assert done.exit_code == 0 and done.output.startswith(f"Usage: main {name} ")


def test_help_lists_the_commands_and_loads_none_of_them() -> None:
    program = (
        "import sys; from baton.workflows.command_line import main\ntry: main(['--help'])\nfinally: print(*sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert all(f"  {name} " in printed for name in COMMANDS)
    assert not {"flytekit", "pydantic", "mlflow"} & {*printed.split()}


def test_an_unknown_command_is_refused() -> None:
    done = CliRunner().invoke(main, ["runn"])
    assert done.exit_code == 2 and "No such command 'runn'" in done.output


@pytest.mark.parametrize("word", ["--lr", "--steps=5", "--num-train-epochs"])
def test_a_field_as_an_option_is_refused_with_the_way_to_set_it(word: str) -> None:
    done = CliRunner().invoke(main, ["run", "recipe.yaml", word, "1"])
    assert done.exit_code == 2 and "--set post_training.0.sft.steps=20" in " ".join(done.output.split())


@pytest.mark.parametrize(
    "words", [["recipe.yaml", "--name", "own"], ["--name", "own"], ["recipe.yaml", "--overwrite-cache"]]
)
def test_an_option_of_pyflyte_is_passed_on(words: list[str], tmp_path: Path) -> None:
    """Its own --name is no field of a recipe. Without a recipe, the project's is run."""
    (tmp_path / "baton.toml").write_text('recipe = "recipe.yaml"')
    (tmp_path / "recipe.yaml").write_text("start_from: {model: gpt2}")
    program = tmp_path / "pyflyte"
    program.write_text('#!/bin/sh\necho "$@"')
    program.chmod(0o755)
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    code = f"import sys; sys.executable = {str(python)!r}; from baton.workflows.command_line import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    own = " ".join(word for word in words if word != "recipe.yaml")
    assert done.stdout.startswith(f"run {own} ") and done.stdout.endswith("pretrain_to_rl --recipe recipe.yaml\n")


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_project_has_no_problems(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BATON_HOME")
    assert CliRunner().invoke(main, ["init", kind, "mine"]).exit_code == 0
    words = ["plan", "mine/recipe.yaml"]
    if kind == "eval":  # its model is on the hub
        tiny_model(tmp_path / "mine/model", turns=True)
        words += ["--set", "start_from.model=model"]
    done = CliRunner().invoke(main, words)
    assert "no problem found" in done.output, done.output
    assert load("mine/recipe.yaml", Recipe.model_validate).name == kind


def test_a_project_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text("name: mine\n")
    done = CliRunner().invoke(main, ["init", "rl"])
    assert done.exit_code == 1 and "recipe.yaml: exists already" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
