"""A recipe's requirements of this machine. Machines without a GPU use fakes of the driver's files and of libcuda."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.infra.tracking.store import TrackingUnreachable, passed_on, tracking_uri
from baton.tasks.data.spec import CorpusSpec, TokenizerSpec
from baton.tasks.evaluate.spec import EvaluateSpec
from baton.tasks.hardware.machine import Machine
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.spec import PretrainSpec
from baton.tasks.publish.spec import PublishSpec
from baton.tasks.rows.spec import RowsSpec
from baton.workflows.checks import machine
from baton.workflows.checks.machine import (
    compiler_problems,
    driver_problems,
    machine_problems,
    offline_problems,
    remarks,
    store_problems,
)
from baton.workflows.checks.run_context import RunContext
from tests.hub import hub_server
from tests.shipped import shipped
from tests.source import ROOT

NONE = Machine((), 16 * 2**30)
TWO_H100 = Machine(("NVIDIA H100 80GB HBM3",) * 2, 2**40)
ONE_L4 = Machine(("NVIDIA L4",), 2**40)
ON_H100 = PretrainSpec(layout=Layout(device="H100"))
BITS = EvaluateSpec.model_validate({"bits_per_byte": {}})


@pytest.fixture
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where torch and its driver are both for CUDA 13, with a compiler and Python's headers."""
    monkeypatch.setattr(machine, "cuda_of_torch", lambda: "13.0")
    monkeypatch.setattr(machine, "cuda_of_driver", lambda: 13000)
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(ROOT / "tests/workflows/headers"))


def on_a_gpu(machine: Machine, **specs: Any) -> list[tuple[str, str]]:
    found = machine_problems(RunContext(specs, machine))
    return [(each.path, each.allowed) for each in found if "Python.h" not in each.allowed]


# -- a GPU that the recipe names -----------------------------------------------------------------------


def test_a_run_on_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    ((path, allowed),) = on_a_gpu(NONE, pretrain=ON_H100)
    assert path == "pretrain.layout.device"
    assert "its driver shows none here" in allowed and "`placement:`" in allowed


def test_gpus_that_are_hidden_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES='' hides all of them" in on_a_gpu(NONE, pretrain=ON_H100)[0][1]


def test_a_placed_stage_asks_nothing_of_this_machine() -> None:
    placed = PretrainSpec.model_validate({"layout": {"device": "H100"}, "placement": {"accelerators": ["H100:1"]}})
    assert on_a_gpu(NONE, pretrain=placed) == []


@pytest.mark.usefixtures("cuda_build")
def test_the_named_gpu_and_a_larger_one_are_fine_and_a_smaller_one_is_not() -> None:
    assert on_a_gpu(TWO_H100, pretrain=ON_H100) == []
    assert on_a_gpu(TWO_H100, pretrain=PretrainSpec(layout=Layout(device="L4"))) == []
    ((_, allowed),) = on_a_gpu(ONE_L4, pretrain=ON_H100)
    assert allowed.startswith("L4, this machine's GPU")


@pytest.mark.usefixtures("cuda_build")
def test_a_gpu_for_each_process() -> None:
    many = PretrainSpec(layout=Layout(device="H100", processes=4, micro_batch=4))
    assert [path for path, _ in on_a_gpu(TWO_H100, pretrain=many)] == ["pretrain.layout.processes"]


def test_torch_s_build_for_cpus_is_reported_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cuda_of_torch", lambda: None)
    assert "TORCH_BACKEND=cuda" in on_a_gpu(TWO_H100, pretrain=ON_H100)[0][1]
    (remark,) = remarks(RunContext({"pretrain": PretrainSpec()}, TWO_H100))
    assert "leaves it idle" in remark


@pytest.mark.usefixtures("cuda_build")
def test_stages_that_use_one_of_several_gpus_are_reported() -> None:
    (remark,) = remarks(RunContext({"evaluate": BITS}, TWO_H100))
    assert remark.startswith("2 GPUs are visible; evaluate use only the first")


# -- driver and compiler -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torch", "driver", "words"),
    [
        ("13.0", 12040, "driver 580.65.06 or newer, required by torch's CUDA 13.0; the one here supports CUDA 12.4"),
        ("12.8", None, "driver 525.60.13 or newer, required by torch's CUDA 12.8; libcuda.so.1 is missing"),
    ],
)
def test_a_driver_that_is_too_old_is_reported_with_one_that_is_not(torch: str, driver: int | None, words: str) -> None:
    (problem,) = driver_problems("pretrain", torch, driver)
    assert words in problem.allowed


@pytest.mark.parametrize(("torch", "driver"), [("13.0", 13000), ("12.8", 12040), ("12.8", 13010)])
def test_a_driver_of_the_same_major_version_will_do(torch: str, driver: int) -> None:
    assert list(driver_problems("pretrain", torch, driver)) == []


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to make a libcuda with")
def test_the_driver_s_cuda_is_what_libcuda_says(tmp_path: Path) -> None:
    """A library with one function replaces NVIDIA's."""
    (tmp_path / "cuda.c").write_text("int cuDriverGetVersion(int *version) { *version = 12040; return 0; }")
    subprocess.run(["gcc", "-shared", "-o", tmp_path / "libcuda.so.1", tmp_path / "cuda.c"], check=True)
    program = "from baton.workflows.checks.machine import cuda_of_driver; print(cuda_of_driver())"
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert output.stdout.strip() == "12040"


def test_torch_s_cuda_is_read_without_importing_it() -> None:
    import torch

    assert machine.cuda_of_torch() == torch.version.cuda


def test_what_triton_compiles_with_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    compiler, headers = compiler_problems("pretrain", tmp_path)
    assert "apt-get install gcc" in compiler.allowed and "-dev" in headers.allowed
    (tmp_path / "Python.h").touch()
    monkeypatch.setenv("CC", "clang-19")
    assert list(compiler_problems("pretrain", tmp_path)) == []


# -- the tracking store --------------------------------------------------------------------------------

NO_ADDRESSES = ["file:///mlruns", "./mlruns", "foo", "http://[bad", "http://", "http://host:port", "sqlite:mlflow.db"]


@pytest.mark.parametrize("uri", NO_ADDRESSES)
def test_what_is_no_address_of_a_tracking_store_is_reported_before_the_run(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (problem,) = machine_problems(RunContext({}, NONE))
    assert (problem.path, problem.value) == ("MLFLOW_TRACKING_URI", uri)
    assert "sqlite:///FILE" in problem.allowed and "unset it" in problem.allowed
    with pytest.raises(TrackingUnreachable, match="must be http"):
        tracking_uri()
    assert passed_on() == {}


@pytest.mark.parametrize("name", ["a?b", "feature%2Fx", "/".join(["h" * 200] * 3)])
def test_a_home_whose_path_is_no_address_of_a_store_is_reported_before_the_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("BATON_HOME", str(tmp_path / name))
    (problem,) = store_problems({})
    assert (problem.path, problem.value) == ("BATON_HOME", str(tmp_path / name))
    with pytest.raises(TrackingUnreachable, match=r"at most 480 bytes and no \? or %"):
        tracking_uri()
    assert not [*store_problems({"MLFLOW_TRACKING_URI": "http://host:5000"})]


@pytest.mark.parametrize(
    "uri",
    [
        "http://host:5000",
        "https://me:word@host/mlflow",
        "sqlite:////data/mlflow.db",
        "sqlite:///mlflow.db?timeout=5",
        "postgresql+psycopg2://me:word@host,host2:5432/mlflow",
        "databricks",
    ],
)
def test_addresses_of_tracking_stores(uri: str) -> None:
    assert not [*store_problems({"MLFLOW_TRACKING_URI": uri})]


# -- the hub -------------------------------------------------------------------------------------------

OF_THE_HUB = {
    "corpus": CorpusSpec.model_validate({"source": {"kind": "huggingface", "name": "owner/text"}}),
    "tokenizer": TokenizerSpec(existing="owner/model"),
    "data": {"chat": RowsSpec.model_validate({"huggingface": {"name": "owner/chat"}})},
}


def offline(specs: dict[str, Any], environment: dict[str, str]) -> dict[str, str]:
    return {each.path: each.allowed for each in offline_problems(RunContext(specs, NONE), environment)}


def test_what_is_of_a_forbidden_hub_is_reported(tmp_path: Path) -> None:
    found = offline(OF_THE_HUB, {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)})
    assert [*found] == ["corpus.source.name", "tokenizer.existing", "data.chat.huggingface.name"]
    assert "HF_HUB_OFFLINE=1 disables: unset it to download owner/text" in found["corpus.source.name"]


def test_data_sets_alone_can_be_forbidden(tmp_path: Path) -> None:
    found = offline(OF_THE_HUB, {"HF_DATASETS_OFFLINE": "TRUE", "HF_HOME": str(tmp_path)})
    assert [*found] == ["corpus.source.name", "data.chat.huggingface.name"]


def test_what_was_downloaded_earlier_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "hub/models--owner--model").mkdir(parents=True)
    (tmp_path / "datasets/owner___text").mkdir(parents=True)
    found = offline(OF_THE_HUB, {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)})
    assert [*found] == ["data.chat.huggingface.name"]


def test_folders_and_a_hub_that_is_allowed_are_fine(tmp_path: Path) -> None:
    assert offline(OF_THE_HUB, {"HF_HUB_OFFLINE": "0"}) == {}
    here = {"tokenizer": TokenizerSpec(existing=str(tmp_path)), "corpus": CorpusSpec()}
    assert offline(here, {"HF_HUB_OFFLINE": "1"}) == {}


def test_a_repository_that_a_run_could_not_publish_to_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with hub_server() as hub:
        hub.used_here(monkeypatch)
        hub.create("model", "team/tiny", private=False)
        ((path, allowed),) = on_a_gpu(NONE, publish=PublishSpec(hub="team/tiny"))
        assert path == "publish.hub" and allowed.startswith("the repository is public. Make it private")
        assert on_a_gpu(NONE, publish=PublishSpec(hub="team/tiny", private=False)) == []
        assert on_a_gpu(NONE, publish=PublishSpec(hub="team/new")) == []
        ((_, allowed),) = on_a_gpu(NONE, publish=PublishSpec(hub="others/new"))
        assert "the token is of team, who is no member of others" in allowed


@pytest.mark.long
def test_a_run_is_refused_and_a_plan_shown(tmp_path: Path) -> None:
    """A plan's recipe may be meant for another machine."""
    content = shipped("laptop.yaml")
    content["pretrain"]["layout"]["device"] = "L4"
    (tmp_path / "gpu.yaml").write_text(yaml.safe_dump(content))
    python, environment = Path(sys.executable), os.environ | {"BATON_HOME": str(tmp_path / "home")}
    planned = [sys.executable, "-m", "baton", "plan", str(tmp_path / "gpu.yaml"), "--json"]
    started = [str(python.parent / "pyflyte"), "run", "workflows/pretrain_to_rl.py", "pretrain_to_rl"]
    plan, run = (
        subprocess.run(words, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
        for words in (planned, [*started, "--recipe", str(tmp_path / "gpu.yaml")])
    )
    assert plan.returncode == 0
    assert any(line.startswith("pretrain.layout.device: 'L4'") for line in json.loads(plan.stdout)["here"])
    assert run.returncode == 2 and "pretrain.layout.device" in run.stdout + run.stderr
