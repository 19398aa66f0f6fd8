"""The connector's reading of SkyPilot's records, and the jobs that it submits, without a server."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")
import sky
from flyteidl.core.execution_pb2 import TaskExecution
from flytekit.extend.backend.base_connector import ConnectorRegistry
from flytekit.extend.backend.utils import is_terminal_phase
from sky.jobs.state import ManagedJobStatus
from sky.schemas.api.responses import ManagedJobRecord
from sky.utils.command_runner import MAX_INLINE_COMMAND_LENGTH

from baton.infra.errors import UserError
from baton.infra.flyte.connector import FINAL, PHASES, SkyJob, SkyPilotConnector, refuse_absent
from baton.infra.paths import baton_home
from baton.infra.placement.config import Placement
from baton.infra.placement.job import FILLER, Order, sky_task
from baton.infra.placement.prices import ordered
from baton.infra.placement.record import over_limit, summary, unchecked_limit, where, with_machine
from tests.images.registry import needs_registry, push, registry

JOB = SkyJob("baton-pretrain-0", "s3://bucket/out", Order({"nodes": 2}, "/shared", "e", {}), "", ["pyflyte-execute"])
COMMAND = ["pyflyte-execute", "--inputs", "s3://bucket/a folder/inputs.pb"]


def test_every_status_has_a_phase() -> None:
    """This fails when SkyPilot adds a status."""
    assert {status.value for status in ManagedJobStatus} == PHASES.keys()


@pytest.mark.parametrize("status", list(ManagedJobStatus))
def test_a_phase_ends_when_the_job_does(status: ManagedJobStatus) -> None:
    phase, _ = PHASES[status.value]
    assert is_terminal_phase(phase) == status.is_terminal() == (status.value in FINAL)
    assert (phase == TaskExecution.SUCCEEDED) == (status == ManagedJobStatus.SUCCEEDED)


def test_flyte_finds_the_connector_by_the_task_s_type() -> None:
    assert isinstance(ConnectorRegistry.get_connector("skypilot"), SkyPilotConnector)


def test_a_job_survives_the_connector_that_made_it() -> None:
    assert SkyJob.decode(JOB.encode()) == JOB


def test_a_server_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", "http://127.0.0.1:9")
    sky.server.common.get_server_url.cache_clear()
    resource = asyncio.run(SkyPilotConnector().get(JOB))
    sky.server.common.get_server_url.cache_clear()
    assert resource.phase == TaskExecution.WAITING_FOR_RESOURCES
    assert "is unreachable; retrying" in (resource.message or "")


def test_the_record_says_where_it_ran() -> None:
    record = ManagedJobRecord(job_id=3, cloud="Slurm", region="beta", zone="cpu", cluster_resources="1x(cpus=2)")
    assert where(record) == {
        "job_id": 3, "cloud": "Slurm", "region": "beta", "zone": "cpu", "resources": "1x(cpus=2)",
    }  # fmt: skip


FULL = "1x[spot](cpus=2, mem=8, m6i.large, disk=256)"
ENDED = {"cloud": "AWS", "region": "us-west-2", "zone": "us-west-2a", "job_duration": 840.0, "end_at": 1.0}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "14 min on aws/us-west-2 (m6i.large spot), $0.02"),
        ({"recovery_count": 1}, "14 min on aws/us-west-2 (m6i.large spot), about $0.02, recovered once"),
        ({"recovery_count": 2}, "14 min on aws/us-west-2 (m6i.large spot), about $0.02, recovered 2 times"),
        (
            {"cluster_resources_full": FULL.replace("1x[spot]", "2x"), "job_duration": 50.0},
            "50 s on aws/us-west-2 (2 × m6i.large), less than $0.01",
        ),
        (
            {"cloud": "Slurm", "region": "alpha", "zone": "cpu", "cluster_resources_full": "1x(cpus=2)"},
            "14 min on slurm/alpha/cpu (1x(cpus=2))",
        ),
    ],
)
def test_the_last_word_says_where_how_long_and_for_how_much(
    more: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sky.Resources, "get_cost", lambda self, seconds: 0.0857)
    record = ManagedJobRecord(**{"cluster_resources_full": FULL, "cluster_resources": "1x(cpus=2)"} | ENDED | more)
    assert summary(where(record)).strip() == message


def test_an_ended_job_keeps_the_machine_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyPilot's record of a job whose machine is gone contains only the requested resources."""
    monkeypatch.setattr(sky.Resources, "get_cost", lambda self, seconds: 0.0857)
    running = ManagedJobRecord(job_id=3, cluster_resources_full=FULL, **ENDED | {"end_at": None})
    asked = "1x[CPU:2][On-demand|Spot]"
    ended = ManagedJobRecord(job_id=3, cluster_resources=asked, cluster_resources_full=asked, **ENDED)
    assert where(with_machine(ended, running)) == where(
        ManagedJobRecord(job_id=3, cluster_resources_full=FULL, **ENDED)
    )
    assert "price_per_hour" not in where(with_machine(ended, running.model_copy(update={"job_id": 2})))
    assert with_machine(ended, None) == ended


@pytest.mark.parametrize(
    ("hours", "over"), [(0.5, None), (3.0, "placement.time_limit_h is 2, and the job has reached 3")]
)
def test_a_job_that_takes_too_long_is_over_its_limit(hours: float, over: str | None) -> None:
    assert over_limit(Placement(time_limit_h=2), ManagedJobRecord(job_duration=3600 * hours)) == over


def test_a_price_limit_that_cannot_be_checked_is_reported() -> None:
    unknown = ManagedJobRecord(cluster_resources_full="1x(cpus=2, mem=8, m99.large, disk=256)", cloud="AWS")
    limited = Placement(max_price_per_run=5)
    assert unchecked_limit(limited, unknown) == "placement.max_price_per_run not checked: no price of m99.large here"
    assert unchecked_limit(Placement(), unknown) is None
    assert unchecked_limit(limited, ManagedJobRecord(cluster_resources_full="1x(cpus=2)", cloud="Slurm")) is None


def order(storage: str = "/shared", **placement: Any) -> dict[str, Any]:
    resources = ordered(Placement.model_validate(placement), None, ["aws"])
    return sky_task("baton-x-0", Order(placement, storage, "20260101-000000", {}), resources, COMMAND, "/shared/out")


def test_the_job_is_a_task_of_skypilot_s() -> None:
    task = sky.Task.from_yaml_config(order("s3://bucket/baton", nodes=2, infra=["aws"], time_limit_h=2))
    assert task.num_nodes == 2
    assert "timeout --kill-after=90 7200 pyflyte-execute --inputs 's3://bucket/a folder/inputs.pb'" in str(task.run)
    assert not task.storage_mounts
    assert not task.file_mounts
    assert task.envs["BATON_STORAGE"] == "s3://bucket/baton"


def test_a_cloud_s_machines_need_a_bucket() -> None:
    home = str(baton_home())
    with pytest.raises(UserError, match=r"of aws/us-east-1 cannot reach .*: set placement\.storage, or BATON"):
        order(home, infra=["aws/us-east-1"], cpus=2)
    assert order(home, infra=["slurm/alpha"])
    mounted_there = Placement(infra=["aws/us-east-1"], cpus=2, storage=home)
    assert sky_task(
        "baton-x-0", Order(mounted_there.model_dump(), home, "e", {}), {"ordered": [{"infra": "aws"}]}, [], ""
    )


@needs_registry
def test_an_image_that_its_registry_lacks_is_refused(tmp_path: Path) -> None:
    with registry(tmp_path) as host:
        with pytest.raises(UserError, match=rf"docker:{host}/not/there:1 is not in its registry: push it"):
            refuse_absent(f"docker:{host}/not/there:1")
        push(host, "there", "1")
        refuse_absent(f"{host}/there:1")
    refuse_absent(f"{host}/there:1")  # a registry that does not answer here may answer on the machines


def secrets(config: dict[str, Any]) -> dict[str, str]:
    """Return a job's secrets without the filler."""
    return {name: value for name, value in config["secrets"].items() if name != FILLER}


def test_secrets_are_skypilot_s_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:password@mlflow.example")
    config = order()
    assert secrets(config) == {"HF_TOKEN": "hf_secret", "MLFLOW_TRACKING_URI": "https://me:password@mlflow.example"}
    assert "hf_secret" not in str(config | {"secrets": {}})
    assert "password" not in str(config | {"secrets": {}})


def test_a_placement_names_secrets_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "not-for-everyone")
    config = order(secrets=["WANDB_API_KEY"], setup='wandb login "$WANDB_API_KEY"')
    assert config["secrets"]["WANDB_API_KEY"] == "not-for-everyone"
    assert "not-for-everyone" not in str(config | {"secrets": {}})
    assert sky.Task.from_yaml_config(config).secrets.keys() == {"WANDB_API_KEY", FILLER}


@pytest.mark.long
def test_a_job_with_secrets_is_too_long_for_a_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyPilot sends the command as a file, so that `ps` shows no secret. Without secrets, the command is as short as
    before."""
    assert FILLER not in order()["secrets"]
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    config = sky_task("baton-x-0", Order({}, str(tmp_path), "e", {}), {}, ["printenv", FILLER], "/shared/out")
    assert len(config["secrets"][FILLER]) >= MAX_INLINE_COMMAND_LENGTH
    assert script(tmp_path, config, config["secrets"]) == 1  # the command's environment lacks the filler


CREDENTIALS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "FLYTE_AWS_ENDPOINT"}


def test_a_bucket_s_credentials_are_secrets_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.setenv(name, "of-the-bucket")
    assert secrets(order("s3://bucket/baton")).keys() == CREDENTIALS
    assert order("/shared")["secrets"] == {}


def test_google_s_credentials_are_a_file_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key.json"
    key.write_text('{"private_key": "a\\nb"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    config = sky_task(
        "baton-x-0",
        Order({}, str(tmp_path), "e", {}),
        {},
        ["sh", "-c", 'cat "$GOOGLE_APPLICATION_CREDENTIALS" > "$BATON_HOME/seen"'],
        "gs://bucket/out",
    )
    assert script(tmp_path, config, config["secrets"]) == 0
    assert (tmp_path / "seen").read_text() == key.read_text()


def test_what_the_task_s_environment_says_reaches_the_job() -> None:
    environment = {"MLFLOW_TRACKING_URI": "http://mlflow", "MY_API_KEY": "secret", "HF_HUB_OFFLINE": "0"}
    config = sky_task("baton-x-0", Order({}, "/shared", "e", {}, environment), {}, COMMAND, "/shared/out")
    assert config["envs"]["HF_HUB_OFFLINE"] == "0"
    assert secrets(config) == {"MLFLOW_TRACKING_URI": "http://mlflow", "MY_API_KEY": "secret"}
    assert "MY_API_KEY" not in config["envs"]


def test_where_there_are_no_containers_there_is_no_image() -> None:
    def sent(**placement: Any) -> dict[str, Any]:
        resources = ordered(Placement.model_validate(placement), "registry/train:1", [])
        return sky_task("baton-x-0", Order(placement, "s3://bucket", "e", {}), resources, COMMAND, "s3://out")

    slurm = sent(infra=["slurm/alpha"])
    assert "image_id" not in str(slurm["resources"])
    either = sent(infra=["slurm/alpha", "aws"])
    images = {choice["infra"]: choice.get("image_id") for choice in either["resources"]["ordered"]}
    assert images == {"slurm/alpha": None, "aws": "docker:registry/train:1"}
    # this cluster has Pyxis
    assert "image_id" in str(sent(infra=["slurm/alpha"], image="registry/train:1")["resources"])


def test_a_secret_that_is_not_there_stops_the_job_before_it_is_sent() -> None:
    with pytest.raises(UserError, match=r"placement\.secrets has NO_SUCH_SECRET, not set"):
        order(secrets=["NO_SUCH_SECRET"])


def run(tmp_path: Path, command: list[str], **placement: Any) -> int:
    """Run a job's script on one machine, and return its exit code."""
    config = sky_task("baton-x-0", Order(placement, str(tmp_path), "e", {}), {}, command, f"{tmp_path}/out")
    return script(tmp_path, config, {})


def script(tmp_path: Path, config: dict[str, Any], secrets: dict[str, str]) -> int:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SKYPILOT_NODE_RANK": "0"}
    environment |= {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"} | config["envs"] | secrets
    return subprocess.run(["bash", "-c", config["run"]], env=environment, check=False).returncode


def test_what_a_person_must_change_ends_the_job(tmp_path: Path) -> None:
    assert run(tmp_path, ["sh", "-c", "exit 3"]) == 3


def test_the_time_limit_ends_the_job(tmp_path: Path) -> None:
    assert run(tmp_path, ["sleep", "60"], time_limit_h=1 / 3600) == 124


def test_the_first_node_is_where_all_meet(tmp_path: Path) -> None:
    assert run(tmp_path, ["sh", "-c", "test $NODE_RANK = 0 && test $MASTER_ADDR = 10.0.0.1 && test $MASTER_PORT"]) == 0
