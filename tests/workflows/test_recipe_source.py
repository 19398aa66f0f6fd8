"""A recipe's file, with what a try changes in it: `--set` and `--smoke`."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError
from baton.workflows.recipe.source import Source
from baton.workflows.recipe.text import load
from tests.source import ROOT

TEXT = """\
name: mine
start_from: {model: gpt2}
post_training:
  - sft: {data: chat, steps: 100}
data:
  chat: {path: chat.jsonl}
"""
FIELD = st.from_regex(r"[a-z_]+(\.[a-z0-9_]+){0,3}", fullmatch=True)


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(TEXT)


def read(source: str) -> dict[str, Any]:
    return load(source, Recipe.model_validate).settings()


@given(st.lists(st.tuples(FIELD, st.text(max_size=20))), st.booleans())
def test_the_name_of_a_changed_recipe_has_all_of_its_changes(sets: list[tuple[str, str]], smoke: bool) -> None:
    source = Source(Path("a.yaml"), tuple(sets), smoke)
    assert Source.parse(str(source)) == source


def test_a_file_whose_name_has_the_mark_is_that_file() -> None:
    Path("a#b.yaml").write_text(TEXT)
    assert Source.parse("a#b.yaml") == Source(Path("a#b.yaml"))


def test_a_value_is_read_as_in_the_file() -> None:
    found = read("recipe.yaml#post_training.0.sft.steps=20&data.chat.held_out=1e-1&publish.description=a b&audit=null")
    assert found["post_training"][0]["sft"]["steps"] == 20
    assert (found["data"]["chat"]["held_out"], found["publish"], found["audit"]) == (0.1, {"description": "a b"}, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("post_training.1.sft.steps=20", "post_training is a list of 1: a number below that, not 1"),
        ("post_training.sft.steps=20", "not sft"),
        ("name.first=20", "name has no fields; it is 'mine'"),
        ("name=[", "YAML"),
    ],
)
def test_a_change_that_has_no_place_is_refused(change: str, reason: str) -> None:
    with pytest.raises(RecipeError, match=reason):
        read(f"recipe.yaml#{change}")


def test_a_wrong_value_is_refused_as_in_the_file() -> None:
    with pytest.raises(RecipeError, match=r"post_training\.0\.sft\.steps: -1"):
        read("recipe.yaml#post_training.0.sft.steps=-1")


@pytest.mark.parametrize(
    "path", [path for path in sorted((ROOT / "workflows").rglob("*.yaml")) if "continuous" not in path.name], ids=str
)
def test_a_smoke_run_of_a_shipped_recipe_is_valid_and_short(path: Path) -> None:
    recipe = load(f"{path}#smoke", Recipe.model_validate)
    assert not [problem for _, spec in recipe for problem in getattr(spec, "problems", list)()]
    assert recipe.name.endswith("-smoke")
    assert not recipe.pretrain or recipe.pretrain.steps <= 3
    assert not recipe.publish or (recipe.publish.alias is None and recipe.publish.name.endswith("-smoke"))
