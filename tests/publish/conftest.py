"""A finished small run: a corpus, a base model, a tuned model and their evaluations, all sealed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.manifest import Manifest, write_manifest
from tests.hub import Hub, hub_server
from tests.posttrain.tiny import tiny_model
from tests.promote.made import metric
from tests.tracking.conftest import empty_store, home, server, sleeping_server  # noqa: F401 - fixtures

METRICS = {
    "bits_per_byte": metric(1.234, "bits per byte", higher_is_better=False),
    "sums.right": metric(0.5, "share"),
    "sums.pass@2": metric(0.75, "share"),
}


# the stage's inputs by the names of these artifacts
INPUTS = {
    "base": "models.0", "other": "models.1", "corpus": "parts.corpus", "rows": "parts.rows_1", "eval_base": "reports.0",
    "eval_grpo": "reports.1",
}  # fmt: skip


@dataclass
class Chain:
    """Artifact directories by name, and their manifests."""

    paths: dict[str, Path]
    manifests: dict[str, Manifest]

    def job(self, directory: Path, spec: dict[str, Any], *inputs: str) -> Path:
        """Write a job directory for the engine, as baton.infra.process.launch does."""
        directory.mkdir(parents=True)
        told = {
            INPUTS.get(name, name): {"path": str(self.paths[name]), "digest": self.manifests[name].digest}
            for name in inputs
        }
        request = {"stage": "publish", "kind": "published_model", "spec": spec, "inputs": told}
        (directory / "spec.json").write_text(json.dumps(request))
        return directory


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_server() as here:
        yield here


@pytest.fixture(scope="session")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    root = tmp_path_factory.mktemp("run")
    paths = {name: root / name for name in ("corpus", "model", "base", "eval_base", "eval_grpo")}
    made: dict[str, Manifest] = {}
    paths["corpus"].mkdir()
    (paths["corpus"] / "train-00000.txt").write_text("text")
    source = {"source": {"kind": "folder", "path": "/home/someone/private/books"}, "hf_token": "s3cr3t"}
    made["corpus"] = write_manifest(paths["corpus"], "corpus", {"documents": 5}, source, {})
    for name, label, parents in (
        ("base", "base", {"data": made["corpus"].digest}),
        ("model", "grpo", {"model": "", "corpus": made["corpus"].digest}),
    ):
        tiny_model(paths[name], seed=len(made))
        (paths[name] / "README.md").write_text("an older card")
        (paths[name] / "record").mkdir()
        (paths[name] / "record" / "metrics.jsonl").write_text("{}\n")
        facts = json.loads((paths[name] / "manifest.json").read_text())["facts"] | {"label": label}
        if "model" in parents:
            parents = parents | {"model": made["base"].digest}
        made[name] = write_manifest(paths[name], "hf_model", facts, {"steps": 50, "learning_rate": 1e-4}, parents)
    for name, of in (("eval_base", "base"), ("eval_grpo", "model")):
        paths[name].mkdir()
        facts = {"label": name.removeprefix("eval_"), "model_digest": made[of].digest, "metrics": METRICS}
        made[name] = write_manifest(paths[name], "eval_report", facts, {}, {"model": made[of].digest})
    return Chain(paths, made)


def publish(job: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the engine as a process."""
    command = [sys.executable, "-m", "baton.tasks.publish.publish", str(job)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"} | variables
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
