"""`baton cluster check` against the tests' admin and pods, and real connectors."""

import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from baton.infra.pod_spec import PodSpec
from baton.workflows.cluster import checks
from baton.workflows.cluster.command import main
from baton.workflows.cluster.probe import looked
from tests.cluster.attempt import BUILT_IN
from tests.cluster.cgroup import can_be_made
from tests.cluster.chain import submit
from tests.cluster.client import Client
from tests.cluster.pod import ROOT
from tests.cluster.propeller import Cluster
from tests.tracking.conftest import Server


def check(config: Path, *words: str, **environment: str) -> tuple[int, dict[str, str]]:
    """Run the check, and return its exit code and its message about each item."""
    command = [sys.executable, "-m", "baton", "cluster", "check", "--config", str(config), *words]
    here = {**os.environ, "MLFLOW_TRACKING_URI": "", **environment}
    done = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, check=False)
    lines = [line[2:] for line in done.stdout.splitlines() if line[:2] in ("✓ ", "✗ ", "? ")]
    assert lines, done.stdout + done.stderr
    return done.returncode, {line[:16].strip(): line[16:].strip() for line in lines}


def run_what_is_created(cluster: Cluster) -> None:
    cluster.admin.created = lambda each: threading.Thread(target=cluster.execute, args=[each]).start()


def test_a_cluster_that_is_ready(cluster: Cluster, client: Client, tmp_path: Path) -> None:
    """The client has a tracking server, which its runs pass on to their pods. The check does the same."""
    uri = cluster.storage.for_pods  # any server that answers, which is all that the check requires
    run_what_is_created(cluster)
    code, said = check(client.config, MLFLOW_TRACKING_URI=uri)
    assert {name: words.partition(": ")[0] for name, words in said.items()} == {
        "admin": "ok",
        "images": "ok",
        "connector": "cannot be tried",
        "storage": "ok",
        "pod": "ok",
        "storage in a pod": "ok",
        "MLflow in a pod": "ok",
        "limits": "ok",
        "pod security": "ok",
    }
    assert said["admin"].endswith("Flyte v1.16.8")
    assert said["MLflow in a pod"] == f"ok: {uri}"
    assert "a pod that asks for as much as stages of baton-serve has" in said["limits"]
    assert not can_be_made() or "has 2 CPUs, 8.0 GiB of memory, " in said["limits"]
    assert code == 0


@pytest.mark.long
@pytest.mark.skipif(not can_be_made(), reason="takes root and a writable cgroup")
def test_a_pod_with_less_than_the_recipe_s_largest_stage_asks_for(cluster: Cluster, client: Client) -> None:
    """The limits are Flyte's defaults, which values.yaml replaces."""
    run_what_is_created(replace(cluster, task_resources=BUILT_IN))
    code, said = check(client.config, "--recipe", "workflows/recipes/laptop.yaml")
    assert said["limits"].startswith("failed: a pod that asks for as much as grpo has 2 CPUs, 1.0 GiB of memory")
    assert "memory 1.0 GiB of 11Gi. Raise task_resources.limits" in said["limits"]
    assert code == 1


def test_a_pod_without_access_to_the_storage(cluster: Cluster, client: Client) -> None:
    """The check shows the last meaningful line of the log, and a fix."""
    without = {name: each for name, each in cluster.environment.items() if "KEY" not in name}
    run_what_is_created(replace(cluster, environment={**without, "AWS_EC2_METADATA_DISABLED": "true"}))
    code, said = check(client.config)
    assert said["pod"].startswith("failed: ") and "default-env-from-secrets" in said["pod"], said["pod"]
    assert not said["pod"].startswith("failed: .") and code == 1


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            "Pod failed.\r\n[primary] terminated with exit code (1). Reason [Error]. Message: \n.",
            "[primary] terminated",
        ),
        ("Message: \nTraceback\nNoCredentialsError: Unable to locate credentials\n.", "NoCredentialsError: Unable"),
        ("\n.\n", ""),
    ],
)
def test_the_last_line_that_says_something(message: str, line: str) -> None:
    assert checks.telling(message).startswith(line) and (line or not checks.telling(message))


@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ("NoCredentialsError: Unable to locate credentials", "default-env-from-secrets"),
        ("An error occurred (403) when calling the PutObject operation: Forbidden", "default-env-from-secrets"),
        ('pods "a-n0-0" is forbidden: violates PodSecurity "restricted:latest"', "pod-template.yaml"),
        ("container has runAsNonRoot and image will run as root", "pod-template.yaml"),
        ('pods "a-n0-0" is forbidden: exceeded quota: project-quota', "has room"),
        ("ErrImagePull: pull access denied, repository does not exist", "cannot pull the image"),
        ("[primary] terminated with exit code (137). Reason [OOMKilled]. Message: \n.", "task_resources"),
    ],
)
def test_what_is_known_has_a_cure(message: str, cure: str) -> None:
    assert cure in checks.cure(message)


def test_what_is_not_known_has_none() -> None:
    assert checks.cure("ValueError: no") == ""


def test_a_pod_that_does_not_end_is_aborted(cluster: Cluster, client: Client) -> None:
    cluster.admin.created = lambda each: None
    cluster.admin.pending = "Unschedulable: 0/1 nodes are available: 1 Insufficient memory."
    code, said = check(client.config, "--patience", "3")
    waits = "failed: not ended after 3 s (--patience), and so aborted: Unschedulable: 0/1 nodes are available: "
    assert said["pod"].startswith(waits) and "has room for the largest stage's pod" in said["pod"]
    assert code == 1
    assert cluster.admin.terminated == [cluster.admin.executions[-1].name]


def test_an_image_that_cannot_be_pulled_is_not_waited_for(
    cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flyte tries to pull it three times, for three minutes."""
    monkeypatch.setattr(checks, "SLICE_S", 0.5)
    monkeypatch.setattr(checks, "PULL_S", 1)
    cluster.admin.created = lambda each: None
    cluster.admin.pending = (
        "[ContainersNotReady|ImagePullBackOff]: Back-off pulling image r.example/i@sha256:0: not found."
    )
    words = ["check", "--config", str(client.config), "--patience", "600"]
    said = CliRunner().invoke(main, words).output
    assert re.search(
        r"✗ pod +failed: not ended after [0-9]+ s, and so aborted: .+ not found; the nodes cannot pull", said
    )


def test_a_recipe_needs_the_images_of_its_stages_alone(client: Client, cluster: Cluster, tmp_path: Path) -> None:
    recipe, config = tmp_path / "recipe.yaml", tmp_path / "config.yaml"
    recipe.write_text("corpus: {}\ntokenizer: {vocab_size: 512}\nshards: {}\npretrain: {}\n")
    content = yaml.safe_load(client.config.read_text())
    content["images"] = {
        name: each for name, each in content["images"].items() if name in ("baton-data", "baton-train")
    }
    config.write_text(yaml.safe_dump(content))
    cluster.admin.created = lambda each: None
    _, said = check(config, "--recipe", str(recipe), "--patience", "1")
    assert said["images"] == "ok: baton-data, baton-train: pinned by digest"
    assert "baton-serve, baton-post-train: missing" in check(config)[1]["images"]


OF_TEXT = {"corpus": {"source": {"kind": "stdlib"}}, "audit": None}


def with_one_image(cluster: Cluster, folder: Path) -> Client:
    client = Client(cluster.admin, cluster.address, folder)
    content = yaml.safe_load(client.config.read_text())
    content["images"] = {"baton-data": content["images"]["baton-data"]}
    client.config.write_text(yaml.safe_dump(content))
    return client


@pytest.mark.long
def test_a_run_asks_for_no_more_images_than_the_check(cluster: Cluster, tmp_path: Path) -> None:
    """flytekit requests the images of all tasks that are loaded."""
    client = with_one_image(cluster, tmp_path)
    (tmp_path / "text.yaml").write_text(yaml.safe_dump(OF_TEXT))
    cluster.admin.created = lambda each: None
    _, said = check(client.config, "--recipe", str(tmp_path / "text.yaml"), "--patience", "1")
    assert said["images"] == "ok: baton-data: pinned by digest"
    assert submit(client, OF_TEXT).name  # raises Refused if more images are requested


@pytest.mark.long
def test_pods_need_no_more_images_than_the_check_asks_for(tracked: Cluster, mlflow: Server, tmp_path: Path) -> None:
    tracked.admin.created = lambda each: None
    client = with_one_image(tracked, tmp_path)
    done = tracked.execute(submit(client, OF_TEXT, MLFLOW_TRACKING_URI=mlflow.uri))
    assert done.failed is None, done.why()
    assert done.made() == ["stages", "prepare_corpus", "report"]


def test_the_check_refuses_what_a_run_refuses(client: Client, tmp_path: Path) -> None:
    rows, recipe = tmp_path / "rows.jsonl", tmp_path / "recipe.yaml"
    rows.write_text('{"text": "a"}\n')
    os.truncate(rows, 100_000_001)
    recipe.write_text(yaml.safe_dump({"corpus": {"source": {"kind": "jsonl", "path": str(rows)}}, "audit": None}))
    checked = CliRunner().invoke(main, ["check", "--config", str(client.config), "--recipe", str(recipe)])
    assert checked.exit_code == 2 and "at most 100.0 MB are uploaded with a run" in checked.output


def test_a_pod_without_a_tracking_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    found = looked(PodSpec())(title="it", asked="{}")
    assert found["MLflow in a pod"].startswith("failed: MLFLOW_TRACKING_URI names no server")


def test_nothing_is_there(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"admin": {"endpoint": "127.0.0.1:9", "insecure": True}}))
    code, said = check(config, "--connector", "127.0.0.1:9")
    assert said["admin"].startswith("failed: 127.0.0.1:9 does not answer")
    assert said["images"].startswith("failed: baton-data, ")
    assert said["connector"].startswith("failed: 127.0.0.1:9")
    assert said["pod"].startswith("cannot be tried")
    assert code == 1


def test_a_config_that_is_missing_is_named() -> None:
    checked = CliRunner().invoke(main, ["check", "--config", "/missing/flyte.yaml"])
    assert checked.exit_code == 2
    assert "'/missing/flyte.yaml' does not exist" in checked.output
