"""Post-training repeated after a promotion, run by `pyflyte run` with every real engine."""

import subprocess
from typing import Any

import pytest
import yaml

from baton.tasks.promote.ledger import generations
from tests.workflows.statements import ASKED, DATA, DPO, SFT
from tests.workflows.test_five_days import FIRST, LIBRARY, RECIPE
from tests.workflows.test_pretrain_to_rl import PYFLYTE, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vllm")]

BASE, TUNED = "refresh", "refresh-tuned"
WITH_TUNING: dict[str, Any] = RECIPE | {
    "name": BASE,
    "publish": {"name": BASE},
    "refresh": {"name": TUNED, "promotion": {"metric": "statements.all_checks", "regressions": {}}},
    "evaluate": RECIPE["evaluate"] | {"statements": ASKED},
    "data": DATA,
    "post_training": [SFT, DPO],
    "stages": [
        {"name": "merged", "stage": f"{ROOT}/workflows/recipes/merge/merge.py:merge", "inputs": ["base", "dpo"]}
    ],
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The output of three runs: before the first promotion, with it, and one more."""
    folder = tmp_path_factory.mktemp("refresh")
    (folder / "incoming").mkdir()
    for name in FIRST:
        (folder / "incoming" / f"{name}.py").write_text((LIBRARY / f"{name}.py").read_text())
    (folder / "recipe.yaml").write_text(yaml.safe_dump(WITH_TUNING))
    with pytest.MonkeyPatch.context() as set_here:
        set_here.chdir(folder)
        set_here.setenv("BATON_HOME", str(folder / "baton"))
        set_here.setenv("PYTHONPATH", str(ROOT))
        early, promoted, again = _run("refresh_rl"), _run("continue_training"), _run("refresh_rl")
        outcomes = [[each.outcome for each in generations(name)] for name in (BASE, TUNED)]
        parents = [each.part("from_base").digest for each in generations(TUNED)]
        bases = [each.part("model").digest for each in generations(BASE)]
    assert (outcomes, parents) == ([["promoted"], ["promoted"]], bases)
    return {"early": early, "promoted": promoted, "again": again}


def _run(workflow: str) -> str:
    command = [PYFLYTE, "run", str(ROOT / "workflows/continuous.py"), workflow, "--recipe", "recipe.yaml"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:] + done.stdout[-3000:]
    return done.stdout + done.stderr


def test_without_a_champion_there_is_nothing_to_tune(outputs: dict[str, str]) -> None:
    assert f"nothing to do: {BASE} has no champion yet" in outputs["early"]


def test_a_promotion_of_the_base_starts_the_tuning(outputs: dict[str, str]) -> None:
    assert f"{BASE} version 1: Promoted" in outputs["promoted"]
    assert "✓ merged" in outputs["promoted"]  # a user's stage after DPO
    assert f"{TUNED} version 1: Promoted" in outputs["promoted"]


def test_a_champion_is_tuned_once(outputs: dict[str, str]) -> None:
    assert f"nothing to do: the champion of {BASE} has been tuned" in outputs["again"]
