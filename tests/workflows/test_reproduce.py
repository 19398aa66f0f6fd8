"""The commands on the lineage pages reproduce the model in an empty folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from baton.infra.lineage.app import alone
from tests.source import ROOT
from tests.workflows.test_pretrain_to_rl import PYFLYTE

pytestmark = pytest.mark.long
RECIPE = {
    "name": "mine",
    "corpus": {"source": {"kind": "function", "function": "code/mine.py:documents", "arguments": {"count": 200}}},
    "tokenizer": {"vocab_size": 260},
    "shards": {},
    "pretrain": {
        "model": {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "ffn_hidden": 64, "max_positions": 32},
        "sequence_length": 16, "global_batch": 4, "steps": 2,
        "layout": {"micro_batch": 4}, "optimizer": {"warmup_steps": 1},
    },
    "convert": {},
    "audit": None,
}  # fmt: skip
HELPER = "def line(number: int) -> str:\n    return f'{number} and {number} is {2 * number}.'\n"
CODE = "from helper import line\n\n\ndef documents(count):\n    token = 'two plus two'\n    for number in range(count):\n        yield line(number)\n"


def command(folder: Path, home: str, *words: str) -> str:
    environment = os.environ | {"BATON_HOME": str(folder / home), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    return done.stdout


def run(folder: Path, recipe: str = "recipe.yaml", home: str = "baton") -> str:
    """Run the recipe, and return the model's digest."""
    command(
        folder, home, PYFLYTE, "run", str(ROOT / "workflows/pretrain_to_rl.py"), "pretrain_to_rl", "--recipe", recipe
    )
    (manifest,) = (folder / home / "jobs").glob("convert-*/output/manifest.json")
    return str(json.loads(manifest.read_text())["digest"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the recipe was run, and the model's digest."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "code").mkdir()
    (folder / "code" / "mine.py").write_text(CODE)
    (folder / "code" / "helper.py").write_text(HELPER)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE))
    return folder, run(folder)


def test_a_model_is_reproduced_in_an_empty_folder(
    made: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, digest = made
    monkeypatch.setenv("BATON_HOME", str(folder / "baton"))
    page = TestClient(alone())
    (execution,) = page.get("/lineage/executions.json").json()["executions"]
    shown = page.get(f"/lineage/executions/{execution['id']}.json").json()
    assert shown["functions"] == {"helper.py": HELPER, "mine.py": CODE}
    assert "--recipe recipe.json" in shown["reproduce"][-1]
    (tmp_path / "recipe.json").write_bytes(page.get(f"/lineage/executions/{execution['id']}/recipe.json").content)

    assert run(tmp_path, "recipe.json") == digest


def test_a_checkpoint_that_nothing_needs_is_not_trained_again(made: tuple[Path, str]) -> None:
    """This holds also if the home was moved. The plan reports that the files are missing, and that a stage that
    reads them would need them."""
    folder, digest = made
    (folder / "baton").rename(folder / "moved")
    for job in (folder / "moved/jobs").glob("pretrain-*"):
        shutil.rmtree(job)
    plan = [sys.executable, "-m", "baton", "plan"]
    assert "6 stages, 5 of them cached" in command(folder, "moved", *plan, "recipe.yaml")
    (folder / "audited.yaml").write_text(yaml.safe_dump(RECIPE | {"audit": {}}))
    assert "7 stages, 4 of them cached" in command(folder, "moved", *plan, "audited.yaml")

    assert run(folder, home="moved") == digest
    assert not list((folder / "moved/jobs").glob("pretrain-*"))
    run(folder, "audited.yaml", home="moved")
    assert list((folder / "moved/jobs").glob("pretrain-*/output/manifest.json"))
    assert list((folder / "moved/jobs").glob("audit-*/output/manifest.json"))
