"""The checks that the plan makes of a custom stage before anything runs."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.custom.spec import CustomSpec
from baton.workflows.checks.secrets import secret_values
from baton.workflows.checks.sections import post_training
from baton.workflows.checks.stages import functions_of_stages, names_of_stages
from baton.workflows.cluster.pod_defaults import resources
from baton.workflows.continuous_training.recipe import ContinuousRecipe
from baton.workflows.dag.call import Call
from baton.workflows.dag.calls import calls
from baton.workflows.plan.planned import plan
from baton.workflows.plan.text import text
from baton.workflows.recipe import Recipe, context_of
from baton.workflows.recipe.error import RecipeError
from tests.shipped import shipped
from tests.source import ROOT

MERGE = str(ROOT / "workflows/recipes/merge/merge.py:merge")
TUNED: dict[str, Any] = {
    "start_from": {"model": "./my-model"},
    "data": {"chat": {"path": "chat.jsonl"}, "more": {"path": "more.jsonl"}},
    "post_training": [{"sft": {"data": "chat"}}, {"name": "other", "sft": {"data": "chat"}}],
    "evaluate": {"chat": {"data": "chat", "rewards": ["r.py:right"]}},
    "publish": {},
}
FACTOR = "import pydantic\nclass S(pydantic.BaseModel, extra='forbid'):\n    factor: int = 1\n"
MERGED = {"name": "merged", "stage": MERGE, "inputs": ["sft", "other"]}
COUNTED = {"name": "counted", "stage": MERGE, "inputs": ["corpus"], "makes": "artifact"}


def recipe(*stages: Mapping[str, Any]) -> Recipe:
    return Recipe.model_validate(TUNED | {"stages": [*stages]})


def test_it_stands_in_the_dag_after_its_inputs_and_its_model_is_evaluated_and_published() -> None:
    dag = {call.title: call for call in calls(recipe(MERGED))}
    assert dag["merged"].inputs == {"inputs": {"sft": "sft", "other": "sft other"}}
    assert dag["evaluate-merged"].inputs["model"] == "merged"
    assert dag["publish"].inputs["model"] == "merged" and "merged" in dag["publish"].inputs["models"]


def test_the_model_that_no_other_is_made_of_is_published_whatever_the_order() -> None:
    half = MERGED | {"name": "half", "inputs": ["sft"]}
    soup = MERGED | {"name": "soup", "inputs": ["half", "other"]}
    for stages in ([soup, half], [half, soup]):
        dag = {call.title: call for call in calls(recipe(*stages))}
        assert dag["publish"].inputs["model"] == "soup"


def test_no_tuning_has_the_name_of_an_evaluation() -> None:
    tunings = [{"name": "evaluate-x", "sft": {"data": "chat"}}]
    (problem,) = post_training(context_of(Recipe.model_validate(TUNED | {"post_training": tunings})))
    assert problem.path == "post_training.0.name" and "nor begin with evaluate-" in problem.allowed


def test_rows_that_it_alone_reads_are_prepared() -> None:
    read = {"name": "counted", "stage": MERGE, "inputs": ["rows-more"], "makes": "artifact"}
    dag = {call.title: call for call in calls(recipe(read))}
    assert dag["counted"].inputs == {"inputs": {"rows-more": "rows-more"}} and "rows-more" in dag
    assert dag["publish"].inputs["model"] == "sft other"  # an artifact is not a model
    assert dag["report"].inputs["parts"]["stage_counted"] == "counted"  # type: ignore[call-overload,index]


@pytest.mark.parametrize(
    ("stages", "path", "said"),
    [
        ([MERGED | {"inputs": ["sft", "dpo"]}], "stages.0.inputs", "one of base, sft, other"),
        ([MERGED | {"inputs": ["publish"]}], "stages.0.inputs", "one of base"),
        ([MERGED | {"name": "load_hf"}], "stages.0.name", "another name than"),
        ([MERGED | {"name": "other"}], "stages.0.name", "another name than"),
        ([MERGED, MERGED], "stages.1.name", "another name than"),
        ([MERGED | {"inputs": ["merged"]}, MERGED | {"name": "b"}], "stages.0.inputs", "one of base"),
        ([MERGED | {"inputs": ["b"]}, MERGED | {"name": "b", "inputs": ["merged"]}], "stages.0.inputs", "b is made of"),
        ([MERGED | {"name": "a-seed1"}], "stages.0.name", "reserved for repetitions"),
        ([MERGED | {"name": "evaluate-b"}], "stages.0.name", "nor begin with evaluate-, which is for evaluations"),
        ([MERGED | {"name": "gather"}], "stages.0.name", "another name than"),
        ([MERGED | {"name": "evaluate-champion"}], "stages.0.name", "another name than"),
        ([MERGED | {"inputs": ["sft other"]}], "stages.0.inputs", "one of base, sft, other"),
    ],
)
def test_names_and_inputs_are_those_of_the_run(stages: list[dict[str, Any]], path: str, said: str) -> None:
    problem = next(names_of_stages(context_of(recipe(*stages))))
    assert problem.path == path and said in problem.allowed


@pytest.mark.parametrize("order", [1, -1])
def test_a_stage_may_read_another_whichever_comes_first_in_the_recipe(order: int) -> None:
    again = {"name": "again", "stage": MERGE, "inputs": ["merged", "evaluate-sft"]}
    read = recipe(*[MERGED, again][::order])
    assert not [*names_of_stages(context_of(read))]
    dag = in_order(read)
    assert dag["again"].inputs == {"inputs": {"merged": "merged", "evaluate-sft": "evaluate-sft"}}


def in_order(read: Recipe) -> dict[str, Call]:
    """Return the DAG's calls by title, after checking that the inputs of each call precede it."""
    before: dict[str, Call] = {}
    for call in calls(read):
        assert call.titles() <= before.keys(), call.title
        before[call.title] = call
    return before


def test_it_may_be_made_of_the_text_alone() -> None:
    read = Recipe.model_validate({"corpus": {}, "stages": [COUNTED]})
    assert not [*names_of_stages(context_of(read))]
    assert in_order(read)["counted"].inputs == {"inputs": {"corpus": "corpus"}}
    of_a_model = Recipe.model_validate({"corpus": {}, "stages": [COUNTED | {"inputs": ["base"]}]})
    (problem,) = names_of_stages(context_of(of_a_model))
    assert (problem.value, problem.allowed) == ("base", "one of corpus")


TUNED_AGAIN = {"name": "last", "start_from": "merged", "sft": {"data": "chat"}}


def tuned_again(*stages: Mapping[str, Any], **sections: Any) -> Recipe:
    """Return a recipe with a tuning of the model `merged` after the stages."""
    tunings = [*TUNED["post_training"], TUNED_AGAIN]
    return Recipe.model_validate(TUNED | {"post_training": tunings, "stages": [*stages]} | sections)


def test_post_training_may_start_from_its_model() -> None:
    read = tuned_again(MERGED)
    assert not [*names_of_stages(context_of(read)), *post_training(context_of(read))]
    dag = in_order(read)
    assert dag["sft last"].inputs["model"] == "merged" and dag["evaluate-merged"].inputs["model"] == "merged"
    assert dag["publish"].inputs["model"] == "sft last"  # merged is an intermediate model


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (["sft", "last"], "merged is made of last: not there before last"),
        (["halved"], "merged is made of last: not there before last"),
        (["evaluate-last"], "merged is made of last: not there before last"),
    ],
)
def test_a_tuning_that_starts_from_what_is_made_of_it_is_refused(inputs: list[str], said: str) -> None:
    halved = {"name": "halved", "stage": MERGE, "inputs": ["last"]}
    (problem,) = post_training(context_of(tuned_again(MERGED | {"inputs": inputs}, halved)))
    assert (problem.path, problem.value) == ("post_training.2.start_from", "merged")
    assert problem.allowed == f"one of base, sft, other; {said}"


def test_an_artifact_is_no_model_to_start_from() -> None:
    (problem,) = post_training(context_of(tuned_again(MERGED | {"makes": "artifact"})))
    assert problem.allowed == "one of base, sft, other"


def test_each_seed_has_its_own_of_what_is_made_of_tuned_models() -> None:
    of_base = {"name": "pruned", "stage": MERGE, "inputs": ["base"]}
    scores = {"name": "scores", "stage": MERGE, "inputs": ["merged", "evaluate-sft"], "makes": "artifact"}
    read = tuned_again(of_base, MERGED, scores, seeds=2)
    assert not [*names_of_stages(context_of(read))]
    dag = in_order(read)
    assert dag["merged-seed1"].inputs == {"inputs": {"sft": "sft seed 1", "other": "sft other seed 1"}}
    assert dag["merged-seed1"].spec.name == "merged-seed1"  # type: ignore[attr-defined]
    assert dag["sft last seed 1"].inputs["model"] == "merged-seed1" and "evaluate-merged-seed1" in dag
    assert dag["scores-seed1"].inputs == {"inputs": {"merged": "merged-seed1", "evaluate-sft": "evaluate-sft-seed1"}}
    assert "pruned" in dag and "pruned-seed1" not in dag
    assert dag["publish"].inputs["model"] == "pruned"  # last model of the first seed from which no tuning starts


def test_what_a_user_says_it_needs_is_in_the_plan_and_its_pod_asks_for_it() -> None:
    read = Recipe.model_validate({"corpus": {}, "stages": [COUNTED | {"hours": 1.5, "memory_gb": 24}]})
    said = "\n".join(text("mine", [*plan(read, context_of(read), None)]))
    assert "counted\n  memory      24 GB (memory_gb)\n  time        1.5 h (hours)\n" in said
    assert "time of counted: 1.5 h; without corpus, report" in said
    assert resources(context_of(read), "stages.0").memory == "23Gi"
    (spec,) = read.stages
    assert spec.identity() == Recipe.model_validate({"stages": [COUNTED]}).stages[0].identity()


def test_continuous_training_has_them_beside_its_refresh() -> None:
    content = shipped("continuous.yaml")
    read = ContinuousRecipe.model_validate(content | {"stages": [MERGED | {"inputs": ["base", "shards"]}]})
    (problem,) = names_of_stages(context_of(read))
    assert problem.value == "shards" and "corpus" in problem.allowed and "pretrain" not in problem.allowed
    without = ContinuousRecipe.model_validate(content | {"refresh": None, "stages": [MERGED]})
    assert [problem.path for problem in without.problems()] == ["stages"]


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        (FACTOR + "def f(spec: S, inputs, output, job): ...", "spec.weights", "Extra inputs"),
        ("def f(spec, inputs, output, job): ...", "stage", "must be annotated with a pydantic model"),
        ("def f(spec): ...", "stage", "has 1 arguments; a stage has four"),
        ("def g(): ...", "stage", "a function of mine.py: g"),
        ("import no_such_module\ndef f(spec, inputs, output, job): ...", "stage", "No module named 'no_such_module'"),
        ("import os; os._exit(7)\ndef f(): ...", "stage", "its process exited with code 7"),
        ("print('hello')\nfrom nothing.at import all\ndef f(spec): ...", "stage", "ModuleNotFoundError"),
    ],
)  # fmt: skip
def test_the_function_is_imported_and_its_fields_are_checked(tmp_path: Path, text: str, path: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    stage = MERGED | {"stage": f"{tmp_path / 'mine.py'}:f", "spec": {"weights": [1]}}
    (problem,) = functions_of_stages(context_of(recipe(stage)))
    assert problem.path == f"stages.0.{path}" and said in problem.allowed


OWN = """
from pydantic import BaseModel
class Inner(BaseModel):
    size: int = 0
class S(BaseModel):
    inner: Inner = Inner()
    shape: tuple[int, ...] = ()
    on: bool = False
    rate: float = 0.0
    name: str = ""
def f(spec: S, inputs, output, job): ...
"""


@pytest.mark.parametrize(
    ("given", "path", "said"),
    [
        ({"sise": 1}, "spec.sise", "Extra inputs"),
        ({"inner": {"sise": 1}}, "spec.inner.sise", "Extra inputs"),
        ({"inner": {"size": "3"}}, "spec.inner.size", "valid integer"),
        ({"inner": {"size": 3.0}}, "spec.inner.size", "valid integer"),
        ({"on": 1}, "spec.on", "valid boolean"),
        ({"name": 3}, "spec.name", "valid string"),
    ],
)
def test_fields_that_the_function_s_type_would_drop_or_change_are_refused(
    tmp_path: Path, given: dict[str, Any], path: str, said: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    stage = MERGED | {"stage": f"{tmp_path / 'own.py'}:f", "spec": given}
    (problem,) = functions_of_stages(context_of(recipe(stage)))
    assert problem.path == f"stages.0.{path}" and said in problem.allowed


def test_fields_are_of_the_types_that_the_function_names(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    given = {"inner": {"size": 3}, "shape": [1, 2], "rate": 1, "on": True}
    stage = MERGED | {"stage": f"{tmp_path / 'own.py'}:f", "spec": given}
    assert not [*functions_of_stages(context_of(recipe(stage)))]
    (tmp_path / "own.py").write_text(OWN.replace("class S(BaseModel)", "class S(BaseModel, extra='allow')"))
    assert not [*functions_of_stages(context_of(recipe(stage | {"spec": {"more": 1}})))]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": float("nan")}, r"a: nan \(float\)"),
        ({"a": [{1: 2}]}, r"a\.0: the name 1, which is not text"),
        ({"a": {"b": (1, 2)}}, r"a\.b: \(1, 2\) \(tuple\)"),
    ],
)
def test_fields_that_json_would_change_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(MERGED | {"spec": given})
    (problem,) = caught.value.problems
    assert problem.path == "stages.0.spec" and re.search(said, problem.allowed)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"api_key": "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"}, ""),
        ({}, 'TOKEN = "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"\n'),
    ],
)
def test_a_secret_in_its_fields_or_its_source_is_refused(tmp_path: Path, fields: dict[str, str], text: str) -> None:
    (tmp_path / "mine.py").write_text(text + FACTOR + "def f(spec: S, inputs, output, job): ...")
    stage = MERGED | {"stage": f"{tmp_path / 'mine.py'}:f", "spec": fields}
    (problem,) = secret_values(context_of(recipe(stage)))
    assert problem.path == ("stages.0.spec.api_key" if fields else "stages.0.stage")


def test_the_example_fits() -> None:
    assert not [*functions_of_stages(context_of(recipe(MERGED | {"spec": {"weights": [1, 2]}})))]


def test_a_missing_file_and_an_unknown_entry_point_are_reported() -> None:
    found = [*functions_of_stages(context_of(recipe(MERGED | {"stage": "gone.py:f"}, MERGED | {"stage": "soup"})))]
    assert [problem.path for problem in found] == ["stages.0.stage", "stages.1.stage"]
    assert "gone.py does not exist" in found[0].allowed and "baton.stages" in found[1].allowed


def test_an_installed_package_s_stage_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "soups.py").write_text(Path(MERGE.partition(":")[0]).read_text())
    info = tmp_path / "soups-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: soups\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[baton.stages]\nsoup = soups:merge\n")
    (info / "top_level.txt").write_text("soups\n")
    (info / "RECORD").write_text("soups.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    stage = CustomSpec.model_validate(MERGED | {"stage": "soup"}).pinned()
    assert stage.function and stage.function.version == "soups 1.5" and stage.stage == "soups:merge"
    assert not [*functions_of_stages(context_of(recipe(MERGED | {"stage": "soup", "spec": {"weights": None}})))]


def test_where_the_file_lies_bears_no_identity(tmp_path: Path) -> None:
    (tmp_path / "merge.py").write_text(Path(MERGE.partition(":")[0]).read_text())
    here, there = (
        CustomSpec.model_validate(MERGED | {"stage": stage}).pinned()
        for stage in (MERGE, f"{tmp_path / 'merge.py'}:merge")
    )
    assert here.identity() == there.identity()
    (tmp_path / "merge.py").write_text("# a comment\n" + (tmp_path / "merge.py").read_text())
    commented = CustomSpec.model_validate(MERGED | {"stage": f"{tmp_path / 'merge.py'}:merge"}).pinned()
    assert commented.identity() == here.identity()
    (tmp_path / "merge.py").write_text((tmp_path / "merge.py").read_text() + "\nprint('changed')\n")
    changed = CustomSpec.model_validate(MERGED | {"stage": f"{tmp_path / 'merge.py'}:merge"}).pinned()
    assert changed.identity() != here.identity()
