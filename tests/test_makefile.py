"""The commands that `make` runs, and its messages if it cannot run them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import ROOT, copy

# the environment of the running Python version, and the other one
BACKEND, OTHER = ("cpu", "cuda") if sys.version_info < (3, 12) else ("cuda", "cpu")
LIST = {"cpu": "requirements.txt", "cuda": "images/gpu.txt"}[BACKEND]


def make(*words: str, where: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `make` as typed in a shell, and not as a part of the `make test` that may be running this test."""
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name and name != "HF_HUB_OFFLINE"}
    environment |= variables
    return subprocess.run(["make", *words], cwd=where, env=environment, check=False, capture_output=True, text=True)


@pytest.fixture
def bare_clone(tmp_path: Path) -> Path:
    """A clone with the files that an installation reads, but without an environment."""
    clone = tmp_path / "clone"
    (clone / "images").mkdir(parents=True)
    copy(clone)
    for name in (
        "Makefile", "README.md", "pyproject.toml", "setup.py", "requirements.in", "requirements.txt", "images/gpu.txt"
    ):  # fmt: skip
        shutil.copy(ROOT / name, clone / name)
    return clone


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for PATH with the programs that make needs, and without Python."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("make", "bash", "sed", "grep", "rm", "touch", "basename"):
        folder.joinpath(name).symlink_to(str(shutil.which(name)))
    return folder


def add_python3(programs: Path) -> None:
    """Add the running version under the name python3 only, as on a distribution with another default version."""
    (programs / "python3").symlink_to(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}").resolve())


def test_without_a_target_it_lists_them() -> None:
    listed = make().stdout
    assert all(f"make {target} " in listed for target in ("demo", "test", "lint", "bench", "clean"))


def test_the_demo_is_one_flyte_command_and_says_how_to_run_others() -> None:
    demo, hint = make("-n", "demo").stdout.splitlines()[-2:]
    recipe = "--recipe workflows/recipes/demo.yaml"
    assert demo == f".venv/bin/pyflyte run workflows/pretrain_to_rl.py pretrain_to_rl {recipe}"
    assert ". .venv/bin/activate" in hint


def test_another_recipe_can_be_named() -> None:
    assert "--recipe mine.yaml\n" in make("-n", "demo", "RECIPE=mine.yaml").stdout


@pytest.mark.parametrize("python", ["no-such-python", "/bin/false"])
def test_a_named_python_that_does_not_fit_is_refused_before_anything_is_created(bare_clone: Path, python: str) -> None:
    result = make("lint", f"PYTHON={python}", where=bare_clone)
    assert result.returncode == 2
    assert f"{python} is not that" in result.stderr
    assert "make PYTHON=/path/to/python3.11" in result.stderr
    assert not (bare_clone / ".venv").exists()


def test_without_its_python_on_path_uv_finds_one(bare_clone: Path, programs: Path) -> None:
    add_python3(programs)
    for name in ("requirements.in", "requirements.txt", "images/gpu.txt"):
        (bare_clone / name).write_text("# nothing to install\n")
    stamp = f".venv/ready-{BACKEND}"
    words = (stamp, f"TORCH_BACKEND={BACKEND}", "CC=true")
    result = make(*words, where=bare_clone, PATH=str(programs), UV_PYTHON_DOWNLOADS="never")
    assert result.returncode == 0, result.stderr
    assert "is not on PATH: uv finds a Python" in result.stdout
    assert (bare_clone / stamp).exists()
    assert [line.partition(",")[0] for line in result.stdout.splitlines() if line[0].isdigit()] == [
        "1/3 checking this machine",
        "2/3 creating .venv and installing uv in it",
        f"3/3 installing {LIST}",
    ]


def test_an_installation_that_fails_is_not_taken_for_a_finished_one(bare_clone: Path) -> None:
    (bare_clone / LIST).write_text("a package that is not one\n")
    (bare_clone / "requirements.in").write_text("# no torch\n")
    stamp = f".venv/ready-{BACKEND}"
    result = make(stamp, f"TORCH_BACKEND={BACKEND}", f"PYTHON={sys.executable}", "CC=true", where=bare_clone)
    assert result.returncode == 2
    assert "a package that is not one" in result.stderr
    assert not (bare_clone / stamp).exists()


def test_without_one_that_uv_finds_or_downloads_it_says_what_to_install(bare_clone: Path, programs: Path) -> None:
    add_python3(programs)
    empty = {"UV_PYTHON_DOWNLOADS": "never", "UV_PYTHON_INSTALL_DIR": str(programs / "none")}
    result = make("lint", f"TORCH_BACKEND={OTHER}", "CC=true", where=bare_clone, PATH=str(programs), **empty)
    assert result.returncode == 2
    assert "and name it: make PYTHON=/path/to/python3." in result.stderr
    assert not (bare_clone / ".venv").exists()


def test_on_a_machine_without_any_python_the_package_is_named(bare_clone: Path, programs: Path) -> None:
    result = make("lint", where=bare_clone, PATH=str(programs))
    assert result.returncode == 2
    assert "Debian, Ubuntu: apt-get install python3-venv\n" in result.stderr
    assert not (bare_clone / ".venv-uv").exists()


def test_a_gpu_machine_has_a_python_and_a_list_of_its_own(bare_clone: Path) -> None:
    result = make("lint", "TORCH_BACKEND=cuda", "PYTHON=no-such-python", where=bare_clone)
    assert "pinned for Python 3.12" in result.stderr
    assert "-r images/gpu.txt" in make("-n", "lint", "TORCH_BACKEND=cuda", where=bare_clone).stdout


@pytest.mark.parametrize(
    ("compiler", "lacks", "packages"),
    [
        ("no-such-compiler", "nothing", "gcc"),
        ("true", "Python.h", "python3.12-dev"),
        ("no-such-compiler", "libnuma", "libnuma1 gcc"),
    ],
)
def test_everything_that_a_gpu_machine_lacks_is_reported_at_once(
    bare_clone: Path, tmp_path: Path, compiler: str, lacks: str, packages: str
) -> None:
    python = tmp_path / "python3.12"  # fails only for the missing requirement
    python.write_text(f'#!/bin/sh\ncase "$2" in *{lacks}*) exit 1;; esac\n')
    python.chmod(0o755)
    result = make("lint", "TORCH_BACKEND=cuda", f"PYTHON={python}", f"CC={compiler}", where=bare_clone)
    assert result.returncode == 2
    assert f"apt-get install {packages}\n" in result.stderr
    assert not (bare_clone / ".venv").exists()


def test_one_clone_can_have_both_environments(bare_clone: Path) -> None:
    listed = make("-n", "test", "TORCH_BACKEND=cuda", "VENV=.venv-cuda", "TESTS=tests/serve", where=bare_clone).stdout
    assert "touch .venv-cuda/ready-cuda" in listed and ".venv/" not in listed
    assert listed.splitlines()[-1].startswith(".venv-cuda/bin/python -m pytest")
    assert listed.endswith(" tests/serve\n")


@pytest.mark.parametrize(("words", "offline"), [([], "1"), (["RECIPE=mine.yaml"], "")])
def test_only_the_demo_s_recipe_is_offline(words: list[str], offline: str) -> None:
    printed = make("--eval=print: ; @echo offline=$${HF_HUB_OFFLINE-}", "print", *words).stdout
    assert printed == f"offline={offline}\n"


def test_an_unknown_backend_is_refused() -> None:
    result = make("lint", "TORCH_BACKEND=rocm")
    assert result.returncode == 2
    assert "TORCH_BACKEND is cpu or cuda, not 'rocm'" in result.stderr


def test_torch_comes_from_a_folder_or_from_pytorch_s_index(bare_clone: Path) -> None:
    assert '--find-links "/wheels" "torch==' in make("-n", "lint", "PIP_FIND_LINKS=/wheels", where=bare_clone).stdout
    assert '--torch-backend cpu "torch==' in make("-n", "lint", "PIP_FIND_LINKS=", where=bare_clone).stdout
