"""The recipe of docs/post-training.md, with its rows, reward and evaluation, run as documented except for its size."""

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.tasks.core.manifest import read_manifest
from tests.docs.pages import page_blocks
from tests.posttrain.tiny import tiny_model
from tests.source import ROOT
from tests.workflows.test_pretrain_to_rl import PYFLYTE

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("vllm")]
SMALL: dict[str, Any] = {"steps": 3, "batch_size": 8, "layout": {"micro_batch": 8}, "warmup_steps": 1}


def block(language: str) -> str:
    """Return the page's first block of a language."""
    return next(found.text for found in page_blocks(ROOT / "docs/post-training.md") if found.language == language)


def chat(count: int = 200) -> Iterator[dict[str, Any]]:
    numbers = random.Random(0)
    for _ in range(count):
        one, other = numbers.randrange(30), numbers.randrange(30)
        question, answer = f"What is {one} and {other}?", str(one + other)
        yield {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the recipe was run."""
    folder = tmp_path_factory.mktemp("own")
    tiny_model(folder / "my-model", turns=True)
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chat()))
    (folder / "reward.py").write_text(block("python"))
    recipe = yaml.safe_load(block("yaml"))
    for each in recipe["post_training"]:
        for spec in each.values():
            spec |= SMALL
    recipe["post_training"][1]["grpo"]["generations"] = 4
    recipe["evaluate"]["sums"] |= {"prompts": 20, "max_new_tokens": 8}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    words = [PYFLYTE, "run", str(ROOT / "workflows/pretrain_to_rl.py"), "pretrain_to_rl", "--recipe", "recipe.yaml"]
    environment = os.environ | {"BATON_HOME": str(folder / "baton"), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONPATH", None)  # a user's folder works without it
    done = subprocess.run(
        words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:] + done.stdout[-3000:]
    return folder


def test_each_model_is_evaluated_by_the_reward(folder: Path) -> None:
    reports = [read_manifest(job / "output").facts for job in (folder / "baton/jobs").glob("evaluate-*")]
    models = [
        read_manifest(made) for stage in ("sft", "grpo") for made in (folder / "baton/jobs").glob(f"{stage}-*/output")
    ]
    assert {each.facts["label"] for each in models} == {"sft", "grpo"}
    # compared by digest, since steps without any reward do not change the model, which then shares the report of its start
    assert {each.digest for each in models} < {report["model_digest"] for report in reports}
    for report in reports:
        assert {"sums.right", "sums.pass@1", "sums.pass@4"} <= report["metrics"].keys()


def test_the_best_model_is_published(folder: Path) -> None:
    """Its card shows the stage that trained it."""
    (card,) = (folder / "baton/jobs").glob("publish-*/output/README.md")
    (choice,) = (folder / "baton/jobs").glob("choose-*/output/manifest.json")
    label = json.loads(choice.read_text())["facts"]["label"]
    assert "sums.right" in card.read_text() and f"| {label} | hf model |" in card.read_text()
    assert label == "base" or "learning_rate:" in card.read_text()


def test_nothing_was_made_of_text_that_nobody_asked_for(folder: Path) -> None:
    assert not list((folder / "baton/jobs").glob("corpus-*"))
