"""Limits of cgroups, in the format of both versions, and real ones where this user may create a cgroup."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from baton.infra.errors import UserError
from baton.infra.pod_spec import Resources, check_gpus, short_of
from baton.infra.process import limits
from tests.cluster.cgroup import Cgroup, can_be_made

VERSIONS = {
    "v1": {
        "memory/memory.limit_in_bytes": "{memory}",
        "cpu/cpu.cfs_quota_us": "{quota}",
        "cpu/cpu.cfs_period_us": "100000",
    },
    "v1, one folder for both": {
        "memory/memory.limit_in_bytes": "{memory}",
        "cpu,cpuacct/cpu.cfs_quota_us": "{quota}",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
    },
    "v2": {"memory.max": "{memory}", "cpu.max": "{quota} 100000"},
}
NONE = {
    "v1": ("9223372036854771712", "-1"),
    "v1, one folder for both": ("9223372036854771712", "-1"),
    "v2": ("max", "max"),
}


def tree(root: Path, version: str, memory: str, quota: str) -> Path:
    for name, words in VERSIONS[version].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(words.format(memory=memory, quota=quota) + "\n")
    return root


@pytest.mark.parametrize("version", VERSIONS)
def test_a_container_s_limits(version: str, tmp_path: Path) -> None:
    root = tree(tmp_path, version, str(200 * 2**20), "150000")
    own = tmp_path / "cgroup"
    own.write_text("9:memory:/kubepods/pod1\n8:cpu,cpuacct:/kubepods/pod1\n0::/kubepods/pod1\n")  # path on the node
    assert limits.memory_limit(root, own) == 200 * 2**20
    assert limits.cpu_limit(root, own) == 1.5


@pytest.mark.parametrize("version", VERSIONS)
def test_no_limit(version: str, tmp_path: Path) -> None:
    root = tree(tmp_path, version, *NONE[version])
    assert limits.memory_limit(root, tmp_path / "none") is None and limits.cpu_limit(root, tmp_path / "none") is None


def test_the_least_of_the_cgroups_above_counts(tmp_path: Path) -> None:
    tree(tmp_path, "v2", "max", "max")
    tree(tmp_path / "pod", "v2", str(2**30), "200000")
    tree(tmp_path / "pod/container", "v2", "max", "400000")
    (tmp_path / "own").write_text("0::/pod/container\n")
    assert limits.memory_limit(tmp_path, tmp_path / "own") == 2**30
    assert limits.cpu_limit(tmp_path, tmp_path / "own") == 2


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
        ("memory.events", "low 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n"),
    ],
)
def test_kills_for_memory_are_counted(file: str, words: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(words)
    assert limits.memory_kills(tmp_path, tmp_path / "none") == 3


def test_a_machine_without_cgroups(tmp_path: Path) -> None:
    assert limits.memory_limit(tmp_path, tmp_path / "none") is None
    assert limits.memory_kills(tmp_path, tmp_path / "none") == 0


LOOK = "from baton.infra.process.limits import *; print(memory(), memory_limit(), cpu_limit(), cores())"


@pytest.mark.skipif(not can_be_made(), reason="takes root and a writable cgroup")
def test_a_real_cgroup() -> None:
    with Cgroup("baton-test-limits", {"memory": "300Mi", "cpu": "500m"}) as cgroup:
        words = [*cgroup.enter(), sys.executable, "-c", LOOK]
        said = subprocess.run(words, check=True, capture_output=True, text=True, env=os.environ).stdout
    assert said.split() == [str(300 * 2**20), str(300 * 2**20), "0.5", "1"]


def test_a_pod_with_less_than_it_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.infra.pod_spec.memory_limit", lambda: 2**30)
    monkeypatch.setattr("baton.infra.pod_spec.cpu_limit", lambda: 2.0)
    assert short_of(Resources(memory="4Gi", cpu=4)) == ["memory 1.0 GiB of 4Gi", "2 CPUs of 4.0"]
    assert short_of(Resources(memory="1Gi", cpu="500m")) == []
    assert short_of(Resources()) == []


@pytest.mark.parametrize("memory", ["٣Gi", "1e9", "400m", "-1Gi", "4GiB"])
def test_a_quantity_that_is_not_read_as_bytes_here_is_refused(memory: str) -> None:
    with pytest.raises(ValidationError):
        Resources(memory=memory)


def test_a_pod_with_fewer_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr("baton.infra.pod_spec.DEVICES", tmp_path)
    assert short_of(Resources(gpu=8)) == ["1 GPUs of 8"] and short_of(Resources(gpu=1)) == []


def test_a_pod_without_any_of_its_gpus_does_not_work_on_its_cpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("baton.infra.pod_spec.DEVICES", tmp_path)
    check_gpus(Resources(gpu=1))  # on a machine that is not a pod, the engine checks this
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e1")
    with pytest.raises(UserError, match="has none: raise gpu in Flyte's task_resources"):
        check_gpus(Resources(gpu=1))
    check_gpus(Resources(gpu=0))
    (tmp_path / "nvidia0").touch()
    check_gpus(Resources(gpu=1))


STAGE = """
from baton.infra.flyte.options import Options
from baton.infra.pod_spec import PodSpec, Resources
from baton.infra.process.launch import Engine
from baton.tasks.core.spec import StageSpec
from baton.tasks.stage_task import Stage, StageTask

def work(spec: StageSpec, options: Options) -> None:
    print("working", flush=True)

config = Stage(Engine("work", "work", version="1"), PodSpec(resources=Resources(cpu="500m", memory="4Gi")))
options = Options(fields={"pod": {"resources": {"memory": "2Gi"}}})
StageTask(task_config=config, task_function=work).execute(spec=StageSpec(), options=options)
"""


@pytest.mark.skipif(not can_be_made(), reason="takes root and a writable cgroup")
@pytest.mark.parametrize(("memory", "said"), [("1Gi", ["work: this pod has memory 1.0 GiB of 2Gi; "]), ("2Gi", [])])
def test_a_pod_says_what_it_lacks_before_it_works(memory: str, said: list[str]) -> None:
    with Cgroup("baton-test-stage", {"memory": memory, "cpu": "500m"}) as cgroup:
        ended = subprocess.run(
            [*cgroup.enter(), sys.executable, "-c", STAGE],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"FLYTE_INTERNAL_EXECUTION_ID": "e1"},
        )
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("work", "working"))]
    assert [line.partition("see ")[0] for line in lines] == [*said, "working"]
