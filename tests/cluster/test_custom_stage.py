"""A custom stage in a pod; its file is only on the client's machine."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.chain import manifests, submit
from tests.cluster.client import Client
from tests.cluster.propeller import Cluster
from tests.posttrain.tiny import tiny_model
from tests.source import ROOT
from tests.tracking.conftest import Server

pytestmark = pytest.mark.long


def test_the_client_s_function_runs_in_a_pod_and_the_same_again_is_a_hit(
    tracked: Cluster, client: Client, mlflow: Server, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "workflows/recipes/merge/merge.py", tmp_path)
    tiny_model(tmp_path / "model")
    recipe: dict[str, Any] = {
        "name": "custom",
        "start_from": {"model": str(tmp_path / "model")},
        "stages": [
            {"name": "halved", "stage": f"{tmp_path}/merge.py:merge", "inputs": ["base"], "spec": {"weights": [0.5]}}
        ],
    }
    done = tracked.execute(submit(client, recipe, MLFLOW_TRACKING_URI=mlflow.uri))
    assert done.failed is None, done.why()
    assert done.made() == ["stages", "load_hf", "custom_model", "report"]
    (made,) = [each for each in manifests(tracked.storage) if each["facts"].get("label") == "halved"]
    assert [*made["parents"]] == ["inputs.base"] and made["spec"]["function"]["name"] == "merge.py:merge"

    (elsewhere := tmp_path / "elsewhere").mkdir()
    shutil.move(tmp_path / "merge.py", elsewhere)
    recipe["stages"][0]["stage"] = f"{elsewhere}/merge.py:merge"
    again = tracked.execute(submit(client, recipe, MLFLOW_TRACKING_URI=mlflow.uri))
    assert again.failed is None, again.why()
    assert again.made() == ["stages", "report"]
