"""A stage with a new kind of artifact requires only its package, here tests/workflows/words, and a call in
workflows/dag/calls.py."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.source import ROOT, copy

PYFLYTE = str(Path(sys.executable).with_name("pyflyte"))
IMPORT = "from baton.tasks.report.spec import ReportSpec\n"
REPORT = "    report = ReportSpec("
CALL = """    if spec := recipe.section(WordsSpec):
        results["words"] = dag.add("words", "count_words", spec, corpus=corpus)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the stage."""
    tree = tmp_path_factory.mktemp("tree")
    copy(tree, "images", "infra", "tasks", "workflows")
    shutil.copytree(ROOT / "tests/workflows/words", tree / "tasks/words", ignore=shutil.ignore_patterns("__pycache__"))
    calls = tree / "workflows/dag/calls.py"
    text = calls.read_text()
    text = text.replace(IMPORT, f"{IMPORT}from baton.tasks.words.spec import WordsSpec\n").replace(
        REPORT, CALL + REPORT
    )
    calls.write_text(text)
    (tree / "sources").mkdir()
    for number in range(10):
        (tree / f"sources/{number}.txt").write_text(f"to be or not to be {number}")
    recipe = {
        "name": "counted",
        "audit": None,
        "corpus": {"source": {"kind": "files", "path": "sources"}, "held_out": 0.3},
        "words": {"shortest": 3},
    }
    (tree / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return tree


def ran(tree: Path, *words: str) -> str:
    environment = os.environ | {"BATON_HOME": str(tree / "home"), "PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_its_section_is_described_and_checked(tree: Path) -> None:
    assert "Characters of the shortest word" in ran(tree, sys.executable, "-m", "baton", "describe", "words")
    refused = (tree / "recipe.yaml").read_text().replace("shortest: 3", "shortest: 0")
    (tree / "refused.yaml").write_text(refused)
    done = subprocess.run(
        [sys.executable, "-m", "baton", "plan", "refused.yaml"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode and "words.shortest" in done.stdout + done.stderr


@pytest.mark.long
def test_it_is_planned_run_cached_and_reported(tree: Path) -> None:
    assert "words" in ran(tree, sys.executable, "-m", "baton", "plan", "recipe.yaml")
    run = (PYFLYTE, "run", "workflows/pretrain_to_rl.py", "pretrain_to_rl", "--recipe", "recipe.yaml")
    ran(tree, *run)
    (report,) = tree.glob("home/jobs/report-*/output/report.html")
    (counted,) = tree.glob("home/jobs/words-*/output/words.json")
    words = counted.read_text()  # one occurrence of "not" in each document
    assert 0 < int(words) < 10
    assert f"The text has {words} words." in (page := report.read_text()) and "measured" in page
    records = [json.loads(path.read_text()) for path in tree.glob("home/executions/*/*/run.json")]
    (shown,) = [record["output"]["shown"] for record in records if record["title"] == "words"]
    assert shown == {"family": "finding", "detail": f"{words} words", "relation": "measured"}
    assert "✓ words" in (again := ran(tree, *run)) and "cached" in again
