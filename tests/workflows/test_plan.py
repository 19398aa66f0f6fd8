"""`baton plan`, with SkyPilot's prices from small hand-written catalogs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.workflows.checks.table import checked
from baton.workflows.plan.planned import plan
from baton.workflows.plan.text import text
from baton.workflows.recipe import Recipe, context_of
from baton.workflows.recipe.error import RecipeError
from tests.source import ROOT

BIN = Path(sys.executable).parent
HEAD = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch"
)
CATALOGS = {
    "aws": [
        "p4de,A100-80GB,8,96,1152,,40,12,us-east-1,us-east-1a,x86_64",
        "p4de,A100-80GB,8,96,1152,,44,14,us-west-2,us-west-2a,x86_64",
        "p5,H100,8,192,2048,,60,,us-east-1,us-east-1a,x86_64",
        "p5.4xlarge,H100,1,24,256,,8,,us-east-1,us-east-1a,x86_64",
    ],
    "lambda": ["gpu_8x_a100,A100-80GB,8,128,2000,,20,,europe-1,europe-1,x86_64"],
    "runpod": ["8x_A100,A100-80GB,8,128,2000,,10,8,EU,EU-1,x86_64"],  # SkyPilot supports only one node there
}
A100S = {"accelerators": ["A100-80GB:8"], "nodes": 2}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "nowhere": {**A100S, "max_price_per_run": 1, "disk_gb": 111},
    "cheapest": {**A100S, "spot": "spot_first"},
    "in_order": {"accelerators": ["H100:8", "A100-80GB:8"], "choose": "in_order", "nodes": 2},
    "dear": {**A100S, "max_price_per_run": 6000},
    "by_the_hour": {**A100S, "max_price_per_hour": 39},
    "too_long": {**A100S, "time_limit_h": 100},
    "no_such_region": {**A100S, "infra": ["aws/moon-1"], "time_limit_h": 1000, "storage": "s3://b/baton"},
    "dear_elsewhere": {**A100S, "infra": ["aws"], "max_price_per_hour": 80, "storage": "s3://b/baton"},
    "excluded": {**A100S, "exclude": ["lambda"], "max_price_per_hour": 1000},
}


def recipe(placement: dict[str, Any]) -> dict[str, Any]:
    """Return the 3b recipe with its pretraining placed, and without the tuning, for which this machine has no room."""
    given: dict[str, Any] = yaml.safe_load((ROOT / "workflows/recipes/3b.yaml").read_text())
    del given["post_training"]
    given["pretrain"]["placement"] = placement
    return given


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with catalogs and the recipes."""
    home = tmp_path_factory.mktemp("home")
    for cloud, rows in CATALOGS.items():
        catalog = home / ".sky/catalogs/v8" / cloud / "vms.csv"
        catalog.parent.mkdir(parents=True)
        catalog.write_text("\n".join([HEAD, *rows, ""]))
    common = home / ".sky/catalogs/v8/common/accelerators.csv"
    common.parent.mkdir()
    common.write_text("AcceleratorName,Clouds\nA100-80GB,\"['AWS', 'Lambda', 'RunPod']\"\nH100,\"['AWS']\"\n")
    for name, placement in PLACEMENTS.items():
        (home / f"{name}.yaml").write_text(yaml.safe_dump(recipe(placement)))
    more = {
        "tokenizer": {"existing": "owner/name"},
        "init_from": {"model": "owner/name", "placement": {"cpus": 8}},
        "convert": {"placement": {"cpus": 8}},
        "data": {"chat": {"path": str(home / "chat.jsonl")}},
        "post_training": [{"sft": {"data": "chat", "placement": {"accelerators": ["H100:1"]}}}],
    }
    own = {
        "name": "own",
        "stage": f"{ROOT}/workflows/recipes/merge/merge.py:merge",
        "inputs": ["corpus"],
        "makes": "artifact",
    }
    more["stages"] = [own | {"hours": 2.0, "placement": {"accelerators": ["H100:1"], "time_limit_h": 1.0}}]
    (home / "chat.jsonl").write_text('{"prompt": "2+2=", "completion": "4"}\n')
    (home / "several.yaml").write_text(yaml.safe_dump(recipe(PLACEMENTS["cheapest"]) | more))
    return home


def environment(home: Path) -> dict[str, str]:
    return os.environ | {"HOME": str(home), "BATON_HOME": str(home / "baton"), "HF_HUB_OFFLINE": "0"}


@pytest.fixture(scope="module")
def plans(home: Path) -> dict[str, tuple[int, str]]:
    pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")
    words = [sys.executable, "-m", "tests.workflows.priced", str(home)]
    ended = subprocess.run(words, cwd=ROOT, env=environment(home), check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, tuple[int, str]] = json.loads(ended.stdout.splitlines()[-1])
    return found


def pretrain(plans: dict[str, tuple[int, str]], name: str) -> dict[str, Any]:
    """Return the stage in the plan for machines."""
    stage: dict[str, Any]
    (stage,) = (each for each in json.loads(plans[f"{name} --json"][1])["stages"] if each["name"] == "pretrain")
    return stage


def test_places_are_in_the_order_in_which_they_would_be_tried(plans: dict[str, tuple[int, str]]) -> None:
    tried = [quote["offer"] for quote in pretrain(plans, "cheapest")["quotes"]["found"]]
    assert [(offer["place"], offer["spot"]) for offer in tried] == [
        ("aws/us-east-1", True),
        ("aws/us-west-2", True),
        ("lambda/europe-1", False),
        ("aws/us-east-1", False),
        ("aws/us-west-2", False),
    ]
    assert [(offer["spot_price"], offer["on_demand_price"]) for offer in tried[:2]] == [(24, 80), (28, 88)]


def test_a_list_in_order_is_tried_in_its_order_and_takes_as_long_as_each_accelerator(
    plans: dict[str, tuple[int, str]],
) -> None:
    first, second, *_ = pretrain(plans, "in_order")["quotes"]["found"]
    assert [each["offer"]["accelerator"] for each in (first, second)] == ["H100", "A100-80GB"]
    # the hours include the start, which takes the same time on both
    assert second["hours"] / first["hours"] == pytest.approx(989.4 / 312, rel=0.01)
    assert (first["spot"], first["on_demand"]) == (None, first["hours"] * 2 * 60)
    assert first["expected"] == first["on_demand"]


def test_cost_is_hours_times_the_price(plans: dict[str, tuple[int, str]]) -> None:
    code, output = plans["cheapest"]
    assert code == 0
    stage = pretrain(plans, "cheapest")
    assert stage["need"]["flops"] == pytest.approx(1.36e21, rel=0.01)
    assert stage["parts"]["training"] == pytest.approx(stage["need"]["flops"] / (0.4 * 312e12 * 16) / 3600)
    assert stage["hours"] == pytest.approx(sum(stage["parts"].values()))
    assert set(stage["parts"]) == {"training", "validation", "start"}
    for words in (
        "at 40% of peak (--mfu)",
        "1. aws/us-east-1 2 x p4de (8 A100-80GB), spot $24.00 per hour (on-demand $80.00), $4,5",
    ):
        assert words in output
    assert f"cost        expected ${stage['hours'] * 24:,.2f}; all spot ${stage['hours'] * 24:,.2f}" in output
    assert f"all on-demand ${stage['hours'] * 40:,.2f}" in output


def test_the_cost_of_several_stages_is_added_up(plans: dict[str, tuple[int, str]]) -> None:
    stages = json.loads(plans["several --json"][1])["stages"]
    costs = {each["name"]: each["quotes"]["found"][0]["expected"] for each in stages if each["quotes"]}
    assert costs["import_hf"] is costs["convert"] is None
    total = f"expected cost of 3 stages: ${costs['pretrain'] + costs['sft'] + costs['own']:,.2f}; 2 more unknown"
    assert total in plans["several"][1]


def test_a_stage_of_ones_own_costs_the_hours_that_the_recipe_says(plans: dict[str, tuple[int, str]]) -> None:
    (own,) = (each for each in json.loads(plans["several --json"][1])["stages"] if each["name"] == "own")
    quote = own["quotes"]["found"][0]
    assert own["hours"] == 2 and quote["expected"] == 2 * quote["offer"]["on_demand_price"] > 0
    code, output = plans["several"]
    assert code == 2 and "stages.0.placement.time_limit_h: 1.0" in output and "for 2.0 h; or less to compute" in output


def test_a_limit_by_the_run_is_a_problem_and_the_plan_is_shown_all_the_same(
    plans: dict[str, tuple[int, str]],
) -> None:
    code, output = plans["dear"]
    assert code == 2
    assert "pretrain.placement.max_price_per_run: 6000.0" in output
    assert "at 40% of its peak" in output
    assert "lambda/europe-1 2 x gpu_8x_a100" in output


def test_a_limit_that_holds_at_another_mfu_is_none_there(plans: dict[str, tuple[int, str]]) -> None:
    code, output = plans["dear --mfu 0.8"]
    assert (code, "at 80% of peak" in output) == (0, True)


@pytest.mark.parametrize(
    ("name", "path", "words"),
    [
        ("by_the_hour", "max_price_per_hour: 39.0", "at least 40.00: lambda/europe-1 2 x gpu_8x_a100"),
        ("too_long", "time_limit_h: 100.0", "at least 189"),
        ("no_such_region", "placement: 'on'", "Invalid region 'moon-1'"),
    ],
)
def test_other_limits(plans: dict[str, tuple[int, str]], name: str, path: str, words: str) -> None:
    code, output = plans[name]
    assert code == 2
    assert path in output
    assert words in output


def test_a_place_over_the_price_by_the_hour_is_not_tried(plans: dict[str, tuple[int, str]]) -> None:
    """SkyPilot's own limit admits an instance at any price once it is cheap enough in one place."""
    assert plans["dear_elsewhere"][0] == 0
    tried = [quote["offer"]["place"] for quote in pretrain(plans, "dear_elsewhere")["quotes"]["found"]]
    assert tried == ["aws/us-east-1"]


def test_what_is_excluded_is_not_tried(plans: dict[str, tuple[int, str]]) -> None:
    tried = [quote["offer"]["place"] for quote in pretrain(plans, "excluded")["quotes"]["found"]]
    assert tried == ["aws/us-east-1", "aws/us-west-2"]


def test_without_a_cloud_it_says_so_and_the_rest(plans: dict[str, tuple[int, str]]) -> None:
    code, output = plans["nowhere"]
    assert code == 0
    assert "prices      not known: SkyPilot has no cloud enabled on this machine; run `sky check`" in output
    assert "memory      49.3 GB on each A100-80GB (80 GB)" in output


def test_pyflyte_run_refuses_what_is_over_its_limit(plans: dict[str, tuple[int, str]], home: Path) -> None:
    """This needs `plans`, which has enabled the clouds."""
    words = [str(BIN / "pyflyte"), "run", "workflows/pretrain_to_rl.py", "pretrain_to_rl"]
    words += ["--recipe", str(home / "dear.yaml")]
    ended = subprocess.run(words, cwd=ROOT, env=environment(home), check=False, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "max_price_per_run" in ended.stdout + ended.stderr
    assert not (home / "baton/jobs").exists()


def test_skypilot_is_loaded_for_placements_alone() -> None:
    program = "import sys, baton.workflows.plan.command as p; p.main(sys.argv[1:], standalone_mode=False)"
    program = f"import atexit, sys; atexit.register(lambda: print('sky' in sys.modules)); {program}"
    words = [sys.executable, "-c", program, "workflows/recipes/laptop.yaml"]
    ended = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1] == "False"


# -- without SkyPilot: a placement and a layout go together ---------------------------------------------


def problems(placement: dict[str, Any], **more: Any) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        checked(Recipe.model_validate(recipe(placement) | more))
    return [str(problem) for problem in caught.value.problems if "hub" not in problem.allowed]


def test_a_layout_fits_each_accelerator_that_it_may_get() -> None:
    (problem,) = problems({"accelerators": ["H100:8", "A100:8"], "nodes": 2})
    assert "GB on each A100 (40 GB)" in problem


def test_a_placement_has_the_machines_of_the_layout() -> None:
    (problem,) = problems({"accelerators": ["H100:8"], "nodes": 1})
    assert problem.startswith("pretrain.placement.nodes: 1: 2: as layout.nodes is")


def test_so_has_the_placement_of_a_post_training_stage() -> None:
    layout = {"nodes": 2, "processes": 8, "sharding": "fsdp2"}
    sft = {"data": "chat", "layout": layout, "placement": {"accelerators": ["H100:8"]}}
    found = problems(
        {"accelerators": ["H100:8"], "nodes": 2},
        data={"chat": {"path": "missing.jsonl"}},
        post_training=[{"sft": sft}],
    )
    assert "post_training.0.sft.placement.nodes: 1: 2: as layout.nodes is" in found


def test_a_placement_has_an_accelerator_for_each_process() -> None:
    (problem,) = problems({"accelerators": ["H100:4"], "nodes": 2})
    assert problem.startswith("pretrain.placement.accelerators.0: 'H100:4': H100:8: one for each of layout.processes")


def test_it_says_what_memory_a_tokenizer_takes() -> None:
    recipe = Recipe.model_validate({"corpus": {}, "tokenizer": {"vocab_size": 300}})
    lines = list(text("mine", list(plan(recipe, context_of(recipe), 0.4))))
    assert "  memory      2 GB with many distinct words in 512 MB of text (sample_mb)" in lines
