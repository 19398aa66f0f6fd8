"""`make survive`: post-training on two nodes that share only storage and no folder."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from baton.infra.process.heartbeat import read_beats
from baton.tasks.core.manifest import read_manifest, verify, write_manifest
from baton.tasks.core.stored import fetch, send
from tests.posttrain.test_parity import inputs, spec_of
from tests.posttrain.tiny import without_times
from tests.s3 import S3
from tests.stage.nodes import Nodes
from tests.stage.pod import Pod, start

__all__ = ["inputs"]  # the fixture is imported for pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def described(rows: Path) -> Path:
    """Add the facts that the stage of the rows records."""
    facts = read_manifest(rows).facts | dict.fromkeys(("duplicates", "faulty", "contaminated"), 0)
    write_manifest(rows, "rows", facts | {"format": "columns", "conversational": False})
    return rows


def undisturbed(s3: S3, folder: Path, storage: str, stage: str, spec: dict[str, Any], places: list[str]) -> Pod:
    """Run the same layout in processes of one machine, which share a folder."""
    spec = spec | {"layout": spec["layout"] | {"nodes": 1, "processes": 2}}
    return start(s3, folder, storage, "tune", stage, json.dumps(spec), *places)


@pytest.mark.parametrize(("stage", "method", "sharding"), [("sft", "full", "fsdp2"), ("dpo", "lora", "ddp")])
def test_a_lost_node_changes_nothing(
    s3: S3, tmp_path: Path, inputs: dict[str, dict[str, Path]], stage: str, method: str, sharding: str
) -> None:
    storage = f"{s3.address}/{stage}"
    spec = spec_of(stage, method, tmp_path / "rewards")
    spec |= {"steps": 40, "checkpoint_every": 4, "layout": {"nodes": 2, "sharding": sharding}}
    with s3.flyte(tmp_path):
        places = [send(str(inputs[stage]["model"]), storage), send(str(described(inputs[stage]["rows"])), storage)]
        shared = undisturbed(s3, tmp_path, f"{storage}-shared", stage, spec, places)
        reference = shared.succeed()

        before = Nodes(s3, tmp_path, storage, "tune", stage, json.dumps(spec), *places)
        while not any(key.endswith("manifest.json") for key in s3.keys(f"{stage}/jobs")):  # the first checkpoint
            assert all(pod.process.poll() is None for pod in before.pods)
            time.sleep(0.05)
        before.pods[1].kill()
        survivor = before.pods[0]
        _, output = survivor.process.communicate(timeout=120)
        assert survivor.process.returncode != 0 and "FlyteRecoverableException" in output, output[-5000:]
        reached = read_beats(survivor.job, [0])[0].step

        first = Nodes(s3, tmp_path, storage, "tune", stage, json.dumps(spec), *places).succeed()
        made = first.succeed()
        began = int(made["said"].partition("work/checkpoints/checkpoint-")[2].split()[0])
        assert 0 < began <= reached
        assert without_times(first.job) == without_times(shared.job)
        assert verify(fetch(made["place"], made["digest"])).digest == reference["digest"]
