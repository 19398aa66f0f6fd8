"""On a cluster, too, a stage is recomputed when its result would change, and not when only the way of computing it
changes."""

from typing import Any

import pytest
from flytekit.core.local_cache import _calculate_cache_key
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import LiteralMap
from flytekit.models.types import LiteralType

from baton.infra.flyte.options import OPTIONS, Options
from baton.infra.process.launch import Engine, job_directory
from baton.tasks.data.task import prepare_corpus
from baton.tasks.pretrain.spec import PretrainSpec
from baton.tasks.pretrain.task import ENGINES, pretrain
from baton.tasks.publish.task import publish
from baton.tasks.stage_task import StageTask
from baton.workflows.recipe import Recipe
from tests.stage.compiled import job_spec, keys, nodes, options

RECIPE: dict[str, Any] = {
    "corpus": {},
    "tokenizer": {"vocab_size": 512},
    "shards": {},
    "pretrain": {},
    "convert": {},
    "audit": None,
    "publish": {},
}
ELSEWHERE = {"placement": {"accelerators": ["H100:1"], "storage": "s3://bucket/baton"}}
HOW: list[dict[str, Any]] = [
    ELSEWHERE,
    {"layout": {"micro_batch": 2}},
    {"checkpoints": {"every": 3}, "survival": {"max_restarts": 2}},
]


def recipe(**pretraining: Any) -> Recipe:
    return Recipe.model_validate(RECIPE | {"pretrain": RECIPE["pretrain"] | pretraining})


@pytest.fixture(scope="module")
def usual() -> Any:
    return job_spec(recipe())


@pytest.mark.parametrize("how", HOW, ids="-".join)
def test_how_a_result_is_reached_is_in_no_key(usual: Any, how: dict[str, Any]) -> None:
    other = job_spec(recipe(**how))
    assert keys(other) == keys(usual)
    (node,) = nodes(other)["pretrain"]
    upstream = {"corpus": [], "tokenizer": ["corpus"], "shards": ["corpus", "tokenizer"], "pretrain": ["shards"]}
    assert options(node) == Options(title="pretrain", upstream=upstream, fields=how)  # the pod receives them


def test_what_the_result_is_is_in_the_key(usual: Any) -> None:
    other = job_spec(recipe(steps=800))
    assert keys(other)["pretrain"] != keys(usual)["pretrain"]
    assert keys(other)["tokenize"] == keys(usual)["tokenize"]


def types_of(given: LiteralType) -> list[LiteralType]:
    inner = [
        *filter(None, [given.collection_type, given.map_value_type]),
        *(given.union_type.variants if given.union_type else []),
    ]
    return [given, *(found for each in inner for found in types_of(each))]


@pytest.mark.parametrize("task", [prepare_corpus, pretrain, publish], ids=lambda task: str(task.task_function.__name__))
def test_the_interface_says_nothing_of_fields_and_their_descriptions(task: StageTask) -> None:
    variables = [*task.interface.inputs.values(), *task.interface.outputs.values()]
    found = [each for variable in variables for each in types_of(variable.type)]
    assert not [each for each in found if each.metadata or (each.structure and each.structure.dataclass_type)]


def test_a_recipe_keeps_its_schema_for_flyte_s_console() -> None:
    assert TypeEngine.to_literal_type(Recipe).metadata


# On one machine


@pytest.mark.parametrize("how", [{}, *HOW], ids=lambda how: "-".join(how) or "nothing")
def test_the_local_cache_has_the_key_it_had(how: dict[str, Any]) -> None:
    task: Any = pretrain
    spec = task.python_interface.inputs["spec"]

    def literals(**inputs: Any) -> LiteralMap:
        types = {"spec": spec, OPTIONS: Options}
        return TypeEngine.dict_to_literal_map(None, inputs, types)

    before = _calculate_cache_key(task.name, "3", literals(spec=PretrainSpec()))
    what, rest = PretrainSpec.model_validate(how).split_options()
    now = literals(spec=what, options=Options(fields=rest))
    assert _calculate_cache_key(task.name, "3", now, task.metadata.cache_ignore_input_vars) == before


@pytest.mark.parametrize("how", HOW, ids="-".join)
def test_a_stage_is_given_its_spec_whole(how: dict[str, Any]) -> None:
    spec = PretrainSpec.model_validate(how)
    what, rest = spec.split_options()
    assert what == PretrainSpec()
    assert what.with_options(rest) == spec


def test_its_job_directory_is_the_same_wherever_it_is_made() -> None:
    engine: Engine = ENGINES["megatron"]
    here, elsewhere = PretrainSpec(), PretrainSpec.model_validate(ELSEWHERE)
    assert job_directory(engine, here.identity(), {}) == job_directory(engine, elsewhere.identity(), {})
