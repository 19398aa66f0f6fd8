"""GRPO's engine with an environment, on a tiny model that was trained on a few calls."""

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from baton.tasks.core.manifest import MANIFEST, write_manifest
from baton.tasks.evaluate.results import read_results
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.user_code.functions import Function
from tests.posttrain.methods.test_grpo import SFT
from tests.posttrain.tiny import (
    environment,
    metrics,
    start,
    tiny_model,
    tiny_rows,
    wait_for_step,
    without_times,
    write_job,
)

pytestmark = pytest.mark.long
DICE = Path(__file__).with_name("dice.py")
ASKED = {"role": "user", "content": "Roll."}
HELD = r"vLLM holds the trainer's weights: 24 tensors, digest (\w+)"
SCHEMA = {
    "type": "function",
    "function": {
        "name": "roll",
        "description": "Roll.",
        "parameters": {"type": "object", "properties": {}},
        "return": {"type": "integer"},
    },
}
SPEC = {
    "data": "dice",
    "steps": 8,
    "batch_size": 32,
    "generations": 8,
    "warmup_steps": 1,
    "learning_rate": 0.0005,
    "beta": 0,
    "max_prompt_tokens": 260,
    "max_new_tokens": 200,
    "max_turns": 3,
    "checkpoint_every": 2,
    "environment": Function.model_validate(f"{DICE}:Dice").pinned().model_dump(mode="json"),
    "rewards": [RewardSpec.model_validate(f"{DICE}:even").pinned().model_dump(mode="json")],
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model that can make calls, after one roll or two."""
    root = tmp_path_factory.mktemp("tiny")
    rows = [{"messages": [ASKED, *rolled(shown)], "tools": [SCHEMA]} for shown in ([3], [4, 1], [6], [2, 5])]
    seen = tiny_rows(root / "seen", rows, "messages")
    spec = SFT | {"steps": 60, "batch_size": 4, "max_new_tokens": 200, "learning_rate": 0.01}
    sft = write_job(root / "sft", "sft", spec, model=tiny_model(root / "model", turns=True, positions=512), rows=seen)
    assert start("baton.tasks.posttrain.engine", sft).wait() == 0, (sft / "log.txt").read_text()
    asked = tiny_rows(root / "asked", [{"prompt": [ASKED]}, {"prompt": [ASKED], "again": 1}], "prompt")
    return {"model": sft / "output", "rows": asked}


def rolled(shown: list[int]) -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": "roll", "arguments": {}}}
    said: list[dict[str, Any]] = []
    for number in shown:
        said.append({"role": "assistant", "content": "", "tool_calls": [call]})
        said.append({"role": "tool", "name": "roll", "content": str(number)})
    return [*said, {"role": "assistant", "content": "Done."}]


@pytest.fixture(scope="module")
def tuned(vllm: None, inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = write_job(tmp_path_factory.mktemp("grpo") / "job", "grpo", SPEC, **inputs)
    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()
    return job


def test_the_model_and_the_environment_take_turns(tuned: Path) -> None:
    lines = metrics(tuned)[1:]

    assert all(line["turns"] > 1.5 and line["tool_calls"] > 0.5 for line in lines)
    assert all(line["tool_errors"] == 0 == line["environments_lost"] for line in lines)
    for line in lines:
        assert line["reward"] == pytest.approx(line["even"] + line["Dice"])


def test_answers_are_masked_where_trainer_and_engine_are_compared(tuned: Path) -> None:
    """The comparison would detect a shift by one token, or an answer among the compared tokens."""
    assert all(1.0 <= line["rollout_mismatch"] < 1.05 for line in metrics(tuned)[1:])


@pytest.mark.parametrize("adapter", [None, {"lora": {"rank": 4}}], ids=["every weight", "LoRA"])
def test_a_rollout_server_samples_for_sharded_ranks(
    tuned: Path, inputs: dict[str, Path], tmp_path: Path, adapter: dict[str, Any] | None
) -> None:
    """The ranks' conversations have different numbers of turns. The server gets the weights gathered from the ranks,
    with an adapter merged; the initial weights equal those of the engine in one process."""
    changed = {
        "steps": 3,
        "adapter": adapter,
        "layout": {"processes": 2, "sharding": "fsdp2", "micro_batch": 8},
        "rollout_servers": {"engines": 1},
        "check_weights_every": 1,
    }
    job = write_job(tmp_path / "job", "grpo", SPEC | changed, **inputs)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "baton.tasks.posttrain.engine", str(job)]

    ended = subprocess.run(command, env=environment(), check=False, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    for line in metrics(job)[1:]:
        assert line["turns"] > 1.5 and line["tool_calls"] > 0.5 and line["environments_lost"] == 0
        assert 1.0 <= line["rollout_mismatch"] < 1.05
    held, alone = (re.findall(HELD, said) for said in (ended.stdout, (tuned / "log.txt").read_text()))
    assert len(held) == 3 and len(set(held)) == 2, "the first of the warmup's steps changes nothing"
    assert held[0] == alone[0]


def test_an_evaluation_plays_held_out_rows(tuned: Path, inputs: dict[str, Path], tmp_path: Path) -> None:
    """The tuned model makes calls, as it did in training, and the transcripts are among the completions."""
    asked = tiny_rows(tmp_path / "rows", [], "prompt")
    rows = [{"prompt": [ASKED], "game": game} for game in range(8)]
    (asked / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (asked / MANIFEST).unlink()
    write_manifest(asked, "rows", {})
    fields = {name: SPEC[name] for name in ("environment", "rewards", "max_turns", "max_new_tokens")}
    spec = {"dice": fields | {"data": "dice", "samples": 2, "pass_at": [2], "temperature": 0.0}}
    job = write_job(tmp_path / "job", "evaluate", spec, **{"model": tuned / "output", "rows.0": asked})

    assert start("baton.tasks.evaluate.evaluate", job).wait() == 0, (job / "log.txt").read_text()

    results = read_results(job / "output")
    values = {name.removeprefix("dice."): metric.value for name, metric in results.metrics.items()}
    assert values["turns"] > 1.5 and values["tool_errors"] == 0 == values["environments_lost"]
    assert len(results.completions) == 16
    for line in results.completions:
        answers = [message["content"] for message in line["completion"] if message["role"] == "tool"]
        # a sampled call may name a tool that does not exist
        shown = [answer for answer in answers if "error" not in answer]
        assert line["rewards"]["Dice"] == min(len(shown), 2) / 2
        assert line["rewards"]["even"] == (sum(map(int, shown)) % 2 == 0 and len(line["completion"]) > 1)
    assert values["even"] == pytest.approx(fmean(line["rewards"]["even"] for line in results.completions))
    assert results.metrics["dice.Dice"].standard_error is not None


def test_killed_and_resumed_it_makes_the_same_model(tuned: Path, inputs: dict[str, Path], tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", "grpo", SPEC, **inputs)
    engine = start("baton.tasks.posttrain.engine", job)
    wait_for_step(job, engine, 5)
    engine.kill()
    engine.wait()

    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()

    assert json.loads((job / "result.json").read_text()) == json.loads((tuned / "result.json").read_text())
    assert without_times(job) == without_times(tuned)
