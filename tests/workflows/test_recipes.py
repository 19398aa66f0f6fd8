"""The shipped recipes."""

from pathlib import Path
from typing import Any

import pytest

from baton.tasks.hardware.machine import Machine
from baton.tasks.hardware.need import MFU
from baton.workflows.checks.run_context import RunContext
from baton.workflows.checks.table import checked
from baton.workflows.continuous_training.recipe import recipe_of
from baton.workflows.plan.command import main
from baton.workflows.plan.planned import plan
from baton.workflows.plan.text import text
from baton.workflows.recipe import Recipe, context_of
from baton.workflows.recipe.error import RecipeError
from tests.shipped import shipped

RECIPES = Path(__file__).parents[2] / "workflows" / "recipes"
# files that only users have
LACKING = {"rl-only": ["start_from.model"], "chat": ["data.chat.path", "data.preferences.path"]}
MEANT_FOR = {  # (accelerator, number of accelerators): 10^9 parameters, 10^9 tokens
    "nano": ("H100", 1, 0.47, 9.5),
    "3b": ("A100-80GB", 16, 3.2, 64),
    "8b-continued": ("H100", 8, 8.2, 21),
    "moe-30b-a3b": ("H100", 32, 30.5, 415),
}
each = pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem not in LACKING))


@pytest.fixture(autouse=True)
def allow_hub_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow models of the hub, which some recipes name. Nothing is downloaded, since the recipes are only checked."""
    monkeypatch.delenv("HF_HUB_OFFLINE")


def read(name: str) -> dict[str, Any]:
    return shipped(f"{name}.yaml")


def lines(name: str) -> list[str]:
    recipe = Recipe.model_validate(read(name))
    context = RunContext(context_of(recipe).specs, Machine((), 8 * 2**30))
    return "\n".join(text(name, list(plan(recipe, context, None)))).splitlines()


@each
def test_a_shipped_recipe_is_right(name: str) -> None:
    assert recipe_of(read(name)).name == name


@each
def test_the_fields_that_differ_from_their_defaults_are_the_same_recipe(name: str) -> None:
    recipe = recipe_of(read(name))
    assert type(recipe).model_validate(recipe.settings()) == recipe


@pytest.mark.parametrize("name", MEANT_FOR)
def test_a_large_recipe_is_as_large_as_it_says(name: str) -> None:
    device, count, parameters, tokens = MEANT_FOR[name]
    spec = Recipe.model_validate(read(name)).pretrain
    assert spec
    vocabulary = spec.model.vocab_size or 32768  # nano trains its own tokenizer
    assert (spec.layout.device, spec.layout.world) == (device, count)
    assert spec.model.parameters(vocabulary) / 1e9 == pytest.approx(parameters, rel=0.02)
    assert spec.tokens() / 1e9 == pytest.approx(tokens, rel=0.02)


@pytest.mark.parametrize("name", MEANT_FOR)
def test_a_large_recipe_fits_its_device_with_room_to_spare(name: str) -> None:
    """This also holds on a machine without a GPU, since the layout names the target device."""
    memory, *_ = [line for line in lines(name) if line.startswith("  memory") and " on each " in line]
    needed, *_, capacity = [
        float(word.strip("(")) for word in memory.split() if word.strip("(").replace(".", "").isdigit()
    ]
    assert 0.3 < needed / capacity < 0.95


@pytest.mark.parametrize("name", ["nano", "3b"])
def test_a_large_recipe_is_tuned_on_its_device(name: str) -> None:
    recipe = Recipe.model_validate(read(name))
    stages = {each.stage: each for each in plan(recipe, context_of(recipe), MFU)}
    assert len(recipe.post_training) > 1
    for step in recipe.post_training:
        planned = stages[step.stage]
        assert planned.need and planned.device == MEANT_FOR[name][0] and planned.device_memory
        assert planned.need.memory.total < 0.95 * planned.device_memory


def test_a_model_that_is_too_large_to_be_tuned_is_refused() -> None:
    with pytest.raises(RecipeError) as caught:
        checked(
            checked(
                Recipe.model_validate(
                    read("8b-continued") | {name: read("3b")[name] for name in ("data", "post_training")}
                )
            )
        )
    assert [problem.path for problem in caught.value.problems] == ["post_training.0.sft", "post_training.1.dpo"]
    (sft, dpo) = (problem.allowed for problem in caught.value.problems)
    assert "GB on one H100 (80 GB): weights 32.8 GB, gradients 32.8 GB, optimizer 65.5 GB" in sft
    assert "use layout: {processes: 2, sharding: fsdp2}, which needs 71.2 GB on each GPU" in sft
    assert "reference model 32.8 GB" in dpo and "layout: {processes: 4, sharding: fsdp2}" in dpo


def test_on_a_larger_accelerator_it_is_not() -> None:
    (sft, _) = read("3b")["post_training"]
    placed = {"sft": sft["sft"] | {"placement": {"accelerators": ["B200:1"]}}}
    whole = read("8b-continued") | {"data": read("3b")["data"], "post_training": [placed]}
    assert Recipe.model_validate(whole).post_training


def test_the_nano_recipe_sees_twenty_tokens_for_each_parameter() -> None:
    spec = Recipe.model_validate(read("nano")).pretrain
    assert spec and spec.tokens() / spec.model.parameters(32768) == pytest.approx(20, rel=0.02)


def test_the_laptop_recipe_fits_a_laptop() -> None:
    memory, *_ = [line for line in lines("laptop") if line.startswith("  memory") and " on each " in line]
    assert "process of this machine (8.59 GB)" in memory


def test_a_recipe_can_be_asked_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(RECIPES / "moe-30b-a3b.yaml") == 0
    shown = capsys.readouterr().out
    for words in (
        "9 stages, 0 of them cached",
        "30.5 B, 3.4 B active per token",
        "23.1 GFLOP per token",
        "32 H100",
        "on each H100 (80 GB)",
        "optimizer",
        "no problem found",
    ):
        assert words in shown


def test_a_recipe_that_is_wrong_says_so_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.yaml").write_text("pretrain: {model: {layers: 0}}")
    assert exit_code(tmp_path / "wrong.yaml") == 2
    assert "pretrain.model.layers" in capsys.readouterr().out


def test_a_recipe_that_is_not_there_says_so_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(tmp_path / "no.yaml") == 2
    assert "an existing YAML or JSON file" in capsys.readouterr().out


def exit_code(recipe: Path) -> int:
    """Return the exit code of `baton plan`."""
    with pytest.raises(SystemExit) as end:
        main([str(recipe)])
    return int(end.value.code or 0)


@pytest.mark.parametrize("name", LACKING)
def test_a_recipe_for_what_its_user_has_lacks_that_alone(name: str) -> None:
    with pytest.raises(RecipeError) as caught:
        checked(Recipe.model_validate(read(name)))
    assert [problem.path for problem in caught.value.problems] == LACKING[name]


def test_the_demo_is_the_task_of_the_laptop_s_recipe() -> None:
    demo, laptop = read("demo"), read("laptop")
    assert demo["data"] == laptop["data"]
    assert demo["evaluate"]["statements"] == laptop["evaluate"]["statements"]
    assert demo["post_training"][2]["grpo"]["rewards"] == laptop["post_training"][2]["grpo"]["rewards"]


def test_the_demo_needs_no_instructions_for_bf16() -> None:
    demo = Recipe.model_validate(read("demo"))
    assert demo.pretrain and demo.convert
    assert demo.pretrain.precision == demo.convert.dtype == "fp32"
    assert {next(iter(step.values()))["precision"] for step in read("demo")["post_training"]} == {"fp32"}


def test_the_naive_recipe_differs_from_the_laptops_in_grpo_alone() -> None:
    laptop, naive = read("laptop"), read("naive")
    assert laptop["post_training"][:2] == naive["post_training"][:2]
    assert {name for name in laptop if laptop[name] != naive.get(name)} == {"name", "post_training", "publish", "serve"}
