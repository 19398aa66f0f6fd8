"""Validating a recipe uses no file, no network, no process and no user code."""

import subprocess
import sys

import pytest

from tests.source import ROOT

# an audit hook also sees files that C code opens
PROGRAM = """
import sys, yaml
from baton.workflows.continuous_training.recipe import ContinuousRecipe, recipe_of
from baton.workflows.recipe.error import RecipeError

content = yaml.safe_load(open(sys.argv[1]))
FORBIDDEN = ("open", "os.listdir", "os.scandir", "socket.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "import")

def hook(event, arguments):
    if event.startswith(FORBIDDEN):
        raise AssertionError((event, arguments))

import croniter, pydantic
sys.addaudithook(hook)
for one in (content, content | {"pretrian": {}, "name": "Wrong Name"}):
    try:
        print(recipe_of(one).name)
    except RecipeError as error:
        print(len(error.problems))
import os
os._exit(0)
"""


@pytest.mark.long
@pytest.mark.parametrize("recipe", sorted(path.name for path in (ROOT / "workflows/recipes").glob("*.yaml")))
def test_validating_it_looks_nothing_up(recipe: str) -> None:
    words = [sys.executable, "-u", "-c", PROGRAM, str(ROOT / "workflows/recipes" / recipe)]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "2", ended.stdout
