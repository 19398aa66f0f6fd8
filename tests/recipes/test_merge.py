"""The example of a user's stage, outside Baton's folders: it runs as any other, and is served from the cache."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.tasks.core.manifest import read_manifest
from tests.posttrain.tiny import tiny_model
from tests.source import ROOT
from tests.workflows.test_pretrain_to_rl import pyflyte

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("vllm")]
EXAMPLES = ROOT / "workflows/recipes"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with copies of the example's files, where the recipe was run."""
    folder = tmp_path_factory.mktemp("own")
    tiny_model(folder / "my-model")
    for name in ("merge/merge.py", "arithmetic/sums.py"):
        shutil.copy(EXAMPLES / name, folder)
    recipe = yaml.safe_load((EXAMPLES / "merge/recipe.yaml").read_text().replace("../arithmetic/", ""))
    for tuning in recipe["post_training"]:
        tuning["sft"] |= {"steps": 4, "batch_size": 8, "layout": {"micro_batch": 8}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    done = pyflyte(folder, folder / "recipe.yaml")
    assert done.returncode == 0, done.stderr[-5000:] + done.stdout[-3000:]
    return folder


def only(folder: Path, stage: str) -> Path:
    (made,) = (folder / "baton/jobs").glob(f"{stage}-*/output")
    return made


def test_the_merged_model_is_evaluated_and_published_with_its_ancestors(folder: Path) -> None:
    merged = read_manifest(only(folder, "custom"))
    tuned = {read_manifest(made).digest for made in (folder / "baton/jobs").glob("sft-*/output")}
    assert set(merged.parents.values()) == tuned and len(tuned) == 2
    reports = [read_manifest(job / "output") for job in (folder / "baton/jobs").glob("evaluate-*")]
    assert merged.digest in {report.facts["model_digest"] for report in reports}
    published = only(folder, "publish")
    assert read_manifest(published).parents["model"] == merged.digest
    card = (published / "README.md").read_text()
    assert all(f"| {label} | hf model |" in card for label in ("one", "other", "merged"))


def test_the_report_compares_it_with_both(folder: Path) -> None:
    text = (only(folder, "report") / "report.md").read_text()
    assert "merged against one, which it was made from" in text
    assert "merged against other, which it was made from" in text


def test_the_same_again_is_cached_and_a_changed_function_runs(folder: Path) -> None:
    def run() -> Any:
        done: subprocess.CompletedProcess[str] = pyflyte(folder, folder / "recipe.yaml")
        assert done.returncode == 0, done.stderr[-5000:]
        return done.stdout + done.stderr

    assert "✓ merged         cached" in run()
    source = folder / "merge.py"
    source.write_text(source.read_text().replace("total = sum(", "total = sum([]) + sum("))
    again = run()
    assert "✓ sft one        cached" in again and "✓ merged         cached" not in again
