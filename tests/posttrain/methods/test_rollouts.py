"""The sync of the trainer's weights to vLLM."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from baton.tasks.posttrain.trl_hooks.grpo import completion_seed
from tests.posttrain.methods.families import FAMILIES
from tests.source import ROOT, last_json


@pytest.mark.long
@pytest.mark.usefixtures("vllm")
def test_the_engine_follows_the_trainers_weights_and_samples_by_place(tmp_path: Path) -> None:
    """The samples depend neither on the number of processes nor on the use of rollout servers."""
    command = [sys.executable, "-m", "tests.posttrain.methods.rollouts", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = last_json(ended.stdout)
    fresh, changed, synced = found["mismatch"]
    assert fresh < 1.01
    assert changed > 1.1, "the engine does not have the old weights"
    assert synced < 1.05
    here, served = re.findall(r"step 0: (vLLM holds the trainer's weights: 24 tensors, digest \w{16})\n", ended.stdout)
    assert here == served
    assert "model.layers.1.self_attn.k_proj.weight differ, 23 tensors are equal" in found["one_off"]
    assert found["stale"].startswith("step 7: vLLM's weights are not the trainer's")
    assert found["one"] == found["two"] == found["served"]
    assert found["open_to_others"] == []
    here, served = found["at_step_3"]
    assert here == served
    assert found["one"][0] != found["one"][1], "each completion of a prompt has a seed of its own"


@pytest.mark.long
@pytest.mark.usefixtures("vllm")
def test_the_engine_follows_trainers_of_every_kind_of_family(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.posttrain.methods.families", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.count("vLLM holds the trainer's weights") == len(FAMILIES)
    apart = last_json(ended.stdout)
    assert apart.keys() == FAMILIES.keys()
    assert all(mean < 1.02 for mean in apart.values()), apart


def test_a_completion_s_seed_depends_on_seed_step_and_place() -> None:
    seeds = {completion_seed(*where) for where in itertools.product(range(2), range(20), range(50))}
    assert len(seeds) == 2 * 20 * 50
    assert completion_seed(0, 1, 2) == completion_seed(0, 1, 2) < 2**32
