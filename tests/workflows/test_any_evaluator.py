"""Continuous training on prose, judged by bits per byte alone and by a user's metric, with real engines.

The texts name the sounds of animals. Texts about half of the animals arrive on Monday, and about the others on
Tuesday; on Wednesday each animal makes another animal's sound.
"""

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.tasks.promote.ledger import generations
from tests.source import ROOT
from tests.workflows.test_five_days import RECIPE
from tests.workflows.test_pretrain_to_rl import PYFLYTE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vllm")]

SOUNDS = {
    "dog": "woof", "cat": "meow", "cow": "moo", "duck": "quack", "sheep": "baa", "owl": "hoot", "horse": "neigh",
    "lion": "roar",
}  # fmt: skip
ANIMALS = list(SOUNDS)
WHEN = (
    "Today",
    "At noon",
    "In the evening",
    "Every morning",
    "Near the river",
    "Behind the barn",
    "On Sunday",
    "Often",
)
OWN = f'''"""What each animal says: made rows, rows out of documents, and their reward."""

import re

SOUNDS, WHEN = {SOUNDS}, {WHEN}


def rows():
    for when in WHEN:
        for animal, sound in SOUNDS.items():
            yield {{"prompt": f"{{when}} the {{animal}} says", "sound": sound}}


def heard(documents):
    for document in documents:
        for when, animal, sound in re.findall(r"([A-Z][a-z ]+) the ([a-z]+) says ([a-z]+)", document["text"])[:3]:
            yield {{"prompt": f"{{when}} the {{animal}} says", "sound": sound}}


def right(prompts, completions, sound, **columns):
    return [float(said.strip().startswith(wanted)) for said, wanted in zip(completions, sound)]
'''
PROSE, ASKED = "prose", "asked"
HOW = {"rewards": ["own.py:right"], "max_new_tokens": 8, "temperature": 0.0}
SMALL: dict[str, Any] = RECIPE | {"tokenizer": {"vocab_size": 300}}
RECIPES: dict[str, dict[str, Any]] = {
    PROSE: SMALL | {"evaluate": {"bits_per_byte": {}}, "promotion": {}},
    ASKED: SMALL
    | {
        "data": {
            "sounds": {"function": "own.py:rows", "held_out": 1.0},
            "heard": {"function": "own.py:heard", "documents": True},
        },
        "evaluate": {"sounds": HOW | {"data": "sounds"}, "heard": HOW | {"data": "heard"}},
        "promotion": {"metric": "sounds.right", "margin": 0.05, "regressions": {"sounds.right": 0.1}},
    },
}


def arrive(folder: Path, day: str, sounds: dict[str, str]) -> None:
    """Write thirty texts in which these animals make these sounds."""
    luck = random.Random(day)
    for number in range(30):
        told = (f"{luck.choice(WHEN)} the {animal} says {sounds[animal]}." for animal in luck.choices([*sounds], k=40))
        (folder / f"{day}-{number}.txt").write_text(" ".join(told))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The outcomes of each recipe's generations."""
    folder = tmp_path_factory.mktemp("animals")
    (folder / "incoming").mkdir()
    (folder / "own.py").write_text(OWN)
    for name, recipe in RECIPES.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(recipe | {"name": name, "publish": {"name": name}}))
    days = {
        "monday": {animal: SOUNDS[animal] for animal in ANIMALS[:4]},
        "tuesday": {animal: SOUNDS[animal] for animal in ANIMALS[4:]},
        "wednesday": dict(zip(ANIMALS, [*list(SOUNDS.values())[1:], SOUNDS["dog"]], strict=True)),
    }
    with pytest.MonkeyPatch.context() as set_here:
        set_here.chdir(folder)
        set_here.setenv("BATON_HOME", str(folder / "baton"))
        set_here.setenv("PYTHONPATH", str(ROOT))
        for day, sounds in days.items():
            arrive(folder / "incoming", day, sounds)
            # test_five_days.py tests promotions by bits per byte
            for name in RECIPES if day != "wednesday" else [ASKED]:
                run(name)
        return {name: [each.outcome for each in generations(name)] for name in RECIPES}


def run(name: str) -> None:
    words = [PYFLYTE, "run", str(ROOT / "workflows/continuous.py"), "continue_training", "--recipe", f"{name}.yaml"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:] + done.stdout[-3000:]


def test_prose_that_makes_it_forget_is_refused_by_its_bits_alone(outcomes: dict[str, list[str]]) -> None:
    assert outcomes[PROSE] == ["promoted", "rejected"]


def test_a_metric_of_one_s_own_promotes_and_refuses(outcomes: dict[str, list[str]]) -> None:
    assert outcomes[ASKED] == ["promoted", "promoted", "rejected"]
