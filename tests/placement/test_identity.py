"""A placement does not affect a stage's identity."""

from typing import Any

import pytest
from flytekit.core.hash import HashMethod

from baton.infra.placement.config import Placement
from baton.tasks.core.spec import StageSpec
from baton.tasks.posttrain.methods.dpo.spec import DPOSpec
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.methods.sft import SFTSpec
from baton.tasks.pretrain.spec import PretrainSpec
from baton.tasks.pretrain.task import pretrain
from baton.workflows.checks.placements import placements
from baton.workflows.checks.table import checked
from baton.workflows.recipe import SECTIONS, Recipe, context_of
from baton.workflows.recipe.error import RecipeError

PRETRAIN: Any = pretrain  # the task, which mypy would see as a function
ELSEWHERE = {"accelerators": ["H100:8"], "spot": "spot_first", "max_price_per_hour": 40}


@pytest.mark.parametrize(
    "spec",
    [SFTSpec, DPOSpec, GRPOSpec, *(SECTIONS[name] for name in SECTIONS if name not in ("post_training", "tracking"))],
)
def test_any_stage_may_be_placed(spec: type) -> None:
    assert issubclass(spec, StageSpec)


def test_it_is_in_no_cache_key() -> None:
    (key,) = [each for each in PRETRAIN.python_interface.inputs["spec"].__metadata__ if isinstance(each, HashMethod)]
    here, elsewhere = PretrainSpec(), PretrainSpec(placement=Placement.model_validate(ELSEWHERE))
    assert key.calculate(here) == key.calculate(elsewhere)
    assert here.identity() == elsewhere.identity()


def test_nodes_that_train_together_need_no_shared_folder() -> None:
    recipe = {"pretrain": {"layout": {"nodes": 2}, "placement": {"nodes": 2, "storage": "s3://bucket"}}}
    assert not [*placements(context_of(Recipe.model_validate(recipe)))]


def test_rollout_servers_on_machines_of_their_own_need_one() -> None:
    assert GRPOSpec.model_validate({"data": "rows", "rollout_servers": {"nodes": 2}}).shared_folder_for()
    assert not GRPOSpec.model_validate({"data": "rows", "rollout_servers": {"engines": 2}}).shared_folder_for()


def test_a_placed_task_differs_in_its_type_alone() -> None:
    placed = PRETRAIN.placed
    assert (placed.task_type, PRETRAIN.task_type) == ("skypilot", "python-task")
    assert placed.name == PRETRAIN.name
    assert placed.metadata.cache_version == PRETRAIN.metadata.cache_version


def test_a_wrong_placement_is_a_problem_of_the_recipe() -> None:
    with pytest.raises(RecipeError, match=r"corpus.placement.acelerators(.|\n)*did you mean accelerators\?"):
        Recipe.model_validate({"corpus": {"placement": {"acelerators": []}}})


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            {"tokenizer": {"vocab_size": 512, "placement": {"nodes": 2}}},
            "tokenizer.placement.nodes: 2\n      1: this stage runs on one",
        ),
        (
            {"post_training": [{"sft": {"placement": {"nodes": 2}}}]},
            "post_training.0.sft.placement.nodes: 2\n      1: as layout.nodes is",
        ),
        (
            {"corpus": {"placement": {"nodes": 2}, "partitions": {"machines": 4}}},
            "corpus.placement.nodes: 2\n      4: as partitions.machines is",
        ),
        (
            {"shards": {"placement": {"nodes": 2}, "machines": 4}},
            "shards.placement.nodes: 2\n      4: as machines is",
        ),
        (
            {"pretrain": {"layout": {"nodes": 2}, "placement": {}}},
            "pretrain.placement.nodes: 1\n      2: as layout.nodes is",
        ),
        (
            {"corpus": {"placement": {"nodes": 4, "storage": "s3://bucket"}, "partitions": {"machines": 4}}},
            "corpus.placement.storage: 's3://bucket'\n      a folder that the machines share, as partitions.machines",
        ),
        (
            {"shards": {"placement": {"nodes": 4, "storage": "s3://bucket"}, "machines": 4}},
            "shards.placement.storage: 's3://bucket'\n      a folder that the machines share, as machines",
        ),
    ],
)
def test_the_machines_fit_the_stage(recipe: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as error:
        checked(Recipe.model_validate(recipe))
    assert message in str(error.value)
