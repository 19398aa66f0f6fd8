"""The items against which a corpus is decontaminated must exist before the corpus is made."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.workflows.checks.table import checked
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError

EVALUATED = {"sums": {"data": "sums", "rewards": [{"math": {}}]}}


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    rows = ({"prompt": f"What is {number} plus {number}?", "completion": str(2 * number)} for number in range(40))
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("rows.py").write_text(
        "def rows(documents): return [{'prompt': each.text[:9], 'completion': '.'} for each in documents]\n"
    )
    return {
        "corpus": {"source": {"kind": "stdlib"}, "curate": [{"decontaminate": {"against": ["evaluate"]}}]},
        "tokenizer": {"vocab_size": 512},
        "shards": {},
        "pretrain": {"steps": 100},
        "convert": {},
        "data": {"sums": {"path": "sums.jsonl"}},
        "evaluate": EVALUATED,
    }


def test_rows_of_files_are_prepared_first(recipe: dict[str, Any]) -> None:
    checked(Recipe.model_validate(recipe))


def test_without_evaluated_rows_there_is_nothing_to_look_for(recipe: dict[str, Any]) -> None:
    del recipe["data"], recipe["evaluate"]

    with pytest.raises(RecipeError, match=r"against: 'evaluate'\n +files with the items; or add `evaluate:`"):
        checked(Recipe.model_validate(recipe))


def test_rows_that_are_made_of_the_corpus_come_after_it(recipe: dict[str, Any]) -> None:
    recipe["data"] = {"sums": {"function": "rows.py:rows", "documents": True}}

    with pytest.raises(RecipeError, match=r"files: data.sums is made of the corpus itself \(`documents: true`\)"):
        checked(Recipe.model_validate(recipe))
