"""A plan for another machine, with a model of the hub, which is a file server here."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from baton.infra.text import brief
from baton.tasks.convert.load_hf_spec import LoadHFSpec
from baton.tasks.hardware.machine import Machine
from baton.workflows.checks.run_context import RunContext, planned_for
from baton.workflows.checks.unread import unread
from baton.workflows.checks.warnings import warnings_of
from baton.workflows.plan.command import main
from baton.workflows.plan.planned import plan
from baton.workflows.plan.text import text
from baton.workflows.recipe import Recipe, context_of
from tests.shapes import shapes_only
from tests.source import ROOT
from tests.workflows.test_tuning_recipes import model

SFT = {"data": "chat", "steps": 100, "batch_size": 8}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment variables of a hub with one model."""
    folder = tmp_path / "hub" / "owner" / "name" / "resolve" / "main"
    folder.mkdir(parents=True)
    model(folder, "8B")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "hub")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
    server.shutdown()
    server.server_close()


def recipe(folder: Path, start: str, **sft: Any) -> dict[str, Any]:
    (folder / "chat.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 1600)
    return {
        "name": "mine",
        "start_from": {"model": start},
        "data": {"chat": {"path": str(folder / "chat.jsonl"), "held_out": 0.0}},
        "post_training": [{"sft": SFT | sft}],
    }


def test_a_model_of_the_hub_is_planned_for_eight_gpus(hub: dict[str, str], tmp_path: Path) -> None:
    wide = {"layout": {"processes": 8, "sharding": "fsdp2"}, "max_prompt_tokens": 512, "max_new_tokens": 512}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe(tmp_path, "owner/name", **wide)))
    words = [
        sys.executable,
        "-m",
        "baton",
        "plan",
        str(tmp_path / "recipe.yaml"),
        "--device",
        "h100:8",
        "--json",
    ]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | hub, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    (sft,) = (step for step in found["stages"] if step["stage"] == "sft")
    assert (sft["device"], sft["need"]["processes"], sft["mfu"]) == ("H100", 8, 0.4)
    assert sft["need"]["parameters"] == pytest.approx(8.19e9, rel=0.01)
    assert sft["epochs"][0]["epochs"] == 0.5
    assert (found["unread"], found["here"], found["warnings"]) == ([], [], [])


def test_without_its_config_nothing_is_promised(tmp_path: Path) -> None:
    """The tests have HF_HUB_OFFLINE=1."""
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe(tmp_path, "owner/name")))
    output = CliRunner().invoke(main, [str(tmp_path / "recipe.yaml")]).output
    assert (
        "not known: start_from.model: owner/name: it is not in the hub's cache, and HF_HUB_OFFLINE disables the hub: the "
        "size, memory and hours of the stages that use it are not known"
    ) in output
    assert output.endswith("no problem found in what is known\n")


def test_a_family_without_an_estimate_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    model(folder, "8B")
    config = json.loads((folder / "config.json").read_text())
    for changes, why in (
        ({"model_type": "gemma9"}, "there is no estimate for model_type gemma9"),
        ({"hidden_size": "wide"}, "its config.json gives no shape"),
        ({"num_attention_heads": 0}, "its config.json gives no shape"),
        ({"model_type": ["qwen3"]}, "there is no estimate for model_type ['qwen3']"),
    ):
        (folder / "config.json").write_text(json.dumps(config | changes))
        (line,) = unread(RunContext({"start_from": LoadHFSpec(model=str(folder))}))
        assert line.startswith(f"start_from.model: {folder}: {why}")


def test_gpus_that_are_idle_are_named_with_what_would_use_them(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with planned_for("H200", 8):
        one = Recipe.model_validate(recipe(tmp_path, model(folder, "8B"), adapter={}))
        context = context_of(one)
        warning, *_ = warnings_of(context)
    assert warning.startswith("post_training.0.sft.layout: 1 of 8 GPUs, the others are idle meanwhile: set processes")
    placed = recipe(tmp_path, str(folder), adapter={}, placement={"accelerators": ["H100:8"]})
    (warning,) = warnings_of(context_of(Recipe.model_validate(placed)))
    assert warning.startswith("post_training.0.sft.layout: 1 of 8 GPUs")


def test_a_mixture_of_experts_is_counted_with_its_experts(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
        "tie_word_embeddings": False, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "max_position_embeddings": 4096, "architectures": ["Qwen3MoeForCausalLM"],
    }  # fmt: skip
    folder = tmp_path / "model"
    folder.mkdir()
    shapes_only(folder, config)
    moe = Recipe.model_validate(recipe(tmp_path, str(folder), placement={"accelerators": ["B200:1"]}, adapter={}))
    (sft,) = [step for step in plan(moe, context_of(moe), None) if step.stage == "sft"]
    assert sft.need and sft.need.parameters == pytest.approx(30.5e9, rel=0.01)
    assert sft.need.active_parameters == pytest.approx(3.35e9, rel=0.01)
    assert sft.mfu == 0.2


def test_hours_are_added_up_and_minutes_are_minutes(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with planned_for("H100", 1):
        given = recipe(tmp_path, model(folder, "8B"), adapter={}, max_prompt_tokens=64, max_new_tokens=64)
        given["post_training"].append({"sft": given["post_training"][0]["sft"] | {"steps": 50}})
        several = Recipe.model_validate(given)
        stages = list(plan(several, context_of(several), None))
    lines = list(text("mine", stages))
    times = [step.hours for step in stages if step.hours]
    assert len(times) == 2 and all(3600 * hours < 600 for hours in times)
    assert any(line.startswith("  time        ") and " on 1 H100, at 40% of peak" in line for line in lines)
    (total,) = [line for line in lines if "one after the other" in line]
    assert f": {brief(3600 * sum(times))}, " in total
    assert total.endswith("without rows, load_hf, publish, report") or "without rows, load_hf, report" in total


def test_on_a_cpu_the_peak_is_measured() -> None:
    tiny = {"corpus": {}, "tokenizer": {"vocab_size": 300}, "shards": {}, "pretrain": {"steps": 40}}
    recipe = Recipe.model_validate(tiny)
    context = RunContext(context_of(recipe).specs, Machine((), 2**34))
    (pretrain,) = [step for step in plan(recipe, context, None) if step.stage == "pretrain"]
    assert pretrain.hours and pretrain.parts["training"] < 1
    assert any("on this machine's CPU, at 55% of peak" in line for line in text("tiny", [pretrain]))


@pytest.mark.parametrize("device", ["H900", "H100:0", "H100:-1", "H100:x", "H100:" + "9" * 5000, "H100:²"])
def test_a_device_that_cannot_be_is_refused(device: str) -> None:
    result = CliRunner().invoke(main, ["recipe.yaml", "--device", device])
    assert result.exit_code == 2 and "Invalid value for '--device'" in result.output
