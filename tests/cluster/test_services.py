"""The images of the connector and of MLflow's server, built and started according to their manifests."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.images.base import base, python_3_12
from tests.images.docker import Docker, needs_docker
from tests.source import ROOT

pytestmark = [pytest.mark.images, needs_docker, pytest.mark.timeout(1800)]

START_S = 300
# The kubelet's probes, from within the container's network
PROBES = {
    "grpc": """
import grpc, sys
from grpc_health.v1 import health_pb2, health_pb2_grpc
with grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}") as channel:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
sys.exit(answer.status != health_pb2.HealthCheckResponse.SERVING)
""",
    "httpGet": """
import sys
from urllib.request import urlopen
sys.exit(urlopen(f"http://127.0.0.1:{sys.argv[1]}{sys.argv[2]}", timeout=10).status != 200)
""",
}
GIVEN = {
    "connector": {},
    "mlflow": {
        "MLFLOW_BACKEND_STORE_URI": "sqlite:////tmp/mlflow.db",
        "MLFLOW_ARTIFACTS_DESTINATION": "/tmp/artifacts",
    },
}


@pytest.fixture
def base_3_12(docker: Docker) -> str:
    if not (os.environ.get("BATON_BASE_3_12") or python_3_12()):
        pytest.skip("NOT RUN: needs a Python 3.12, on PATH or under pyenv, or an image that BATON_BASE_3_12 names")
    return base(docker, "3.12")


def built(docker: Docker, dockerfile: str, base: str) -> str:
    name = f"{Path(dockerfile).parent.name}:test"
    with subprocess.Popen(
        ["tar", "-c", "-C", str(ROOT), "baton", "images", "infra"], stdout=subprocess.PIPE
    ) as context:
        words = ["docker", "build", "--file", dockerfile, "--tag", name, "--build-arg", f"BASE={base}", "-"]
        subprocess.run(words, env=docker.environment, stdin=context.stdout, check=True)
    return name


def started(docker: Docker, image: str, pod: dict[str, Any]) -> str:
    """Start the pod's only container as the kubelet does; returns its name."""
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] and security["capabilities"] == {"drop": ["ALL"]}
    name, user = container["name"], pod["securityContext"]["runAsUser"]
    words = ["--detach", "--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += ["--name", name, "--user", str(user), "--memory", container["resources"]["limits"]["memory"].rstrip("i")]
    words += [f"--tmpfs={each['mountPath']}:uid={user}" for each in container["volumeMounts"]]
    environment = {each["name"]: each["value"] for each in container["env"]} | GIVEN[name]
    words += [f"--env={key}={value}" for key, value in environment.items()]
    docker("run", *words, image, *container["args"])
    return str(name)


def healthy(docker: Docker, name: str, container: dict[str, Any]) -> bool:
    """Return whether the readiness probe of a service succeeds in time."""
    probe = container["readinessProbe"]
    (kind,) = probe.keys() & PROBES.keys()
    port = next(each["containerPort"] for each in container["ports"])
    words = ["nsenter", "--net", "--target", docker("inspect", "--format", "{{.State.Pid}}", name)]
    words += [sys.executable, "-c", PROBES[kind], str(port), probe[kind].get("path", "")]
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and docker("inspect", "--format", "{{.State.Running}}", name) == "true":
        if subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return True
        time.sleep(1)
    return False


@pytest.mark.parametrize("manifest", ["infra/flyte/connector.yaml", "infra/mlflow/mlflow.yaml"])
def test_a_service_starts_in_its_image_as_its_manifest_says(docker: Docker, base_3_12: str, manifest: str) -> None:
    objects = yaml.safe_load_all((ROOT / manifest).read_text())
    (deployment,) = [each for each in objects if each["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    name = started(docker, built(docker, str(Path(manifest).with_name("Dockerfile")), base_3_12), pod)
    try:
        assert healthy(docker, name, pod["containers"][0]), docker.run("logs", name).stderr[-3000:]
    finally:
        docker("rm", "--force", name)
