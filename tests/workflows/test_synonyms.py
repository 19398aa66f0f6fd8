"""The proposals for fields that have other names in TRL, Axolotl or LLaMA-Factory."""

from typing import Any

import pytest

from baton.tasks.posttrain.methods import METHODS
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError, models_at
from baton.workflows.recipe.synonyms import ADVICE, FIELDS

SECTIONS = ["", "corpus", "data.one", "pretrain", "pretrain.model", "start_from", "evaluate", "serve"]
SECTIONS += [f"post_training.0.{method}" for method in METHODS] + ["post_training.0.grpo.rollout_servers"]


def is_field(path: str) -> bool:
    parent, _, name = path.rpartition(".")
    return any(name in model.model_fields for model in (models_at(parent, Recipe) if parent else [Recipe]))


@pytest.mark.parametrize("name", FIELDS)
def test_each_proposed_field_exists(name: str) -> None:
    for field in FIELDS[name]:
        path = field.partition("; ")[0]
        places = [f"{section}.{path}".strip(".") for section in SECTIONS]
        assert [place for place in places if is_field(place)], path


@pytest.mark.parametrize(
    ("section", "field", "allowed"),
    [
        ("sft", "lr", "is called learning_rate here"),
        ("sft", "num_train_epochs", "is called steps here; it counts optimizer steps, and the plan shows the epochs"),
        ("sft", "save_steps", "is called checkpoint_every here"),
        ("sft", "lora_r", "is called adapter.lora.rank here"),
        ("grpo", "kl_coef", "is called beta here"),
        ("grpo", "num_generations", "is called generations here"),
        ("sft", "report_to", "MLflow has every run, at the address MLFLOW_TRACKING_URI"),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(section: str, field: str, allowed: str) -> None:
    assert problem({"post_training": [{section: {"data": "one", field: 1}}]}) == f"unknown field; {allowed}"


def test_it_depends_on_the_section() -> None:
    assert problem({"pretrain": {"lr": 1e-3}}) == "unknown field; is called optimizer.lr here"
    assert problem({"sft": {}}) == "unknown field; is called post_training here; a list of stages, such as `- sft: {…}`"


def test_fields_that_only_baton_sets_are_not_listed() -> None:
    known = problem({"post_training": [{"grpo": {"data": "one", "zzz": 1}}]})
    assert "rewards" in known and "rewards_tried" not in known and "label" not in known


def test_no_name_is_in_both_tables() -> None:
    assert not FIELDS.keys() & ADVICE.keys()


def problem(recipe: dict[str, Any]) -> str:
    """Return the message for an unknown field of the recipe."""
    with pytest.raises(RecipeError) as refused:
        Recipe.model_validate({"name": "tuned"} | recipe)
    (found,) = [each for each in refused.value.problems if each.allowed.startswith("unknown field")]
    return found.allowed
