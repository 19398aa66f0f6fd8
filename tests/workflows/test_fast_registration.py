"""`pyflyte run --remote --copy all` uploads the code that pods run, and nothing else."""

import ast
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from flytekit.constants import CopyFileDetection
from flytekit.tools.fast_registration import FastPackageOptions, fast_package

from tests.source import ROOT

PRODUCT = ("images", "infra", "tasks", "workflows")
COMMANDS = (
    "command_line",
    "describe",
    "export",
    "init",
    "remote",
    "rollback",
    "run",
    "schedule",
    "uploads",
    "version",
)  # modules for a user's machine
LEFT_BEHIND = [
    "tests/",
    ".git",
    ".ci/",
    ".venv/",
    ".baton/",
    "images/data.txt",
    "README.md",
    "docs/",
    "infra/champion/",
    "infra/compose.yaml",
    "infra/lineage/",
    "infra/proxy/",
    "infra/flyte/values.yaml",
    "infra/flyte/Dockerfile",
]


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pod's working directory, with the archive beside it."""
    clone = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in [name for name in listed if name and (ROOT / name).is_file()]:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    for name in (".venv/lib/large.so", ".baton/jobs/log.txt"):  # ignored paths, in a folder without git
        (clone / name).parent.mkdir(parents=True)
        (clone / name).touch()
    there = tmp_path_factory.mktemp("archive")
    archive = fast_package(clone, there, options=FastPackageOptions([], copy_style=CopyFileDetection.ALL))
    pod = tmp_path_factory.mktemp("pod")
    with tarfile.open(archive) as tar:
        tar.extractall(pod, filter="data")
    return pod


def test_it_is_the_product_alone(pod: Path) -> None:
    there = [str(path.relative_to(pod)) for path in pod.rglob("*") if path.is_file()]
    assert not [name for name in there if any(name.startswith(each) for each in LEFT_BEHIND)]
    assert {"tasks/pages/style.css", "workflows/pretrain_to_rl.py", "tasks/pretrain/train.py"} <= set(there)


def test_it_is_small(pod: Path) -> None:
    assert sum(path.stat().st_size for path in pod.rglob("*") if path.is_file()) < 2.9e6


def test_all_that_a_stage_loads_is_in_it(pod: Path) -> None:
    modules = [
        ".".join(("baton", *path.relative_to(ROOT).with_suffix("").parts))
        for path in [*ROOT.glob("tasks/*/task.py"), *ROOT.glob("workflows/*.py")]
        if path.stem not in ("__init__", "launch_plans", *COMMANDS)
    ]
    program = f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)"
    ended = subprocess.run([sys.executable, "-c", program], cwd=pod, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_what_a_stage_s_modules_import_is_in_the_pod(pod: Path) -> None:
    """Only imports at the top level count, since a function may import modules for a user's machine."""
    missing = []
    for path in (pod / "tasks").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if (
                isinstance(node, ast.ImportFrom)
                and (name := node.module or "").removeprefix("baton.").split(".")[0] in PRODUCT
            ):
                module = pod / name.removeprefix("baton.").replace(".", "/")
                if not (module.is_dir() or module.with_suffix(".py").exists()):
                    missing.append(f"{path.relative_to(pod)}: {name}")
    assert not missing
