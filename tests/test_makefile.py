"""What `make` runs, and what it says when it cannot."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.source import ROOT


def make(*words: str, where: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`make` as typed in a shell, not as a part of the `make test` that may be running us."""
    environment = {name: value for name, value in os.environ.items() if "MAKE" not in name and name != "HF_HUB_OFFLINE"}
    return subprocess.run(["make", *words], cwd=where, env=environment, check=False, capture_output=True, text=True)


@pytest.fixture
def bare_clone(tmp_path: Path) -> Path:
    """What an installation reads, and no environment."""
    (tmp_path / "images").mkdir()
    for name in ("Makefile", "requirements.in", "requirements.txt", "images/gpu.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_without_a_word_it_lists_the_targets() -> None:
    listed = make().stdout
    assert all(f"make {target} " in listed for target in ("demo", "test", "lint", "bench", "clean"))


def test_the_demo_is_one_flyte_command() -> None:
    ran = make("-n", "demo").stdout.splitlines()[-1]
    recipe = "--recipe workflows/recipes/laptop.yaml"
    assert ran == f".venv/bin/pyflyte run workflows/pretrain_to_rl.py pretrain_to_rl {recipe}"


def test_another_recipe_can_be_named() -> None:
    assert make("-n", "demo", "RECIPE=mine.yaml").stdout.endswith("--recipe mine.yaml\n")


@pytest.mark.parametrize("python", ["no-such-python", "/bin/false"])
def test_a_python_that_does_not_fit_is_refused_before_anything_is_made(bare_clone: Path, python: str) -> None:
    ended = make("lint", f"PYTHON={python}", where=bare_clone)
    assert ended.returncode == 2
    assert f"{python} is not that" in ended.stderr
    assert "make PYTHON=/path/to/python3.11" in ended.stderr
    assert not (bare_clone / ".venv").exists()


def test_a_gpu_machine_has_a_python_and_a_list_of_its_own(bare_clone: Path) -> None:
    ended = make("lint", "TORCH_BACKEND=cuda", "PYTHON=no-such-python", where=bare_clone)
    assert "pinned list is for Python 3.12" in ended.stderr
    assert "-r images/gpu.txt" in make("-n", "lint", "TORCH_BACKEND=cuda", where=bare_clone).stdout


@pytest.mark.parametrize(("compiler", "headers"), [("no-such-compiler", 0), ("true", 1)])
def test_what_triton_compiles_with_is_asked_for_on_a_gpu_machine(
    bare_clone: Path, tmp_path: Path, compiler: str, headers: int
) -> None:
    python = tmp_path / "python3.12"  # says yes to everything, but for Python.h
    python.write_text(f'#!/bin/sh\ncase "$2" in *Python.h*) exit {headers};; esac\n')
    python.chmod(0o755)
    ended = make("lint", "TORCH_BACKEND=cuda", f"PYTHON={python}", f"CC={compiler}", where=bare_clone)
    assert ended.returncode == 2
    assert "apt-get install\ngcc python3.12-dev" in ended.stderr
    assert not (bare_clone / ".venv").exists()


def test_one_clone_can_have_both_environments(bare_clone: Path) -> None:
    listed = make("-n", "test", "TORCH_BACKEND=cuda", "VENV=.venv-cuda", "TESTS=tests/serve", where=bare_clone).stdout
    assert "touch .venv-cuda/ready-cuda" in listed and ".venv/" not in listed
    assert listed.splitlines()[-1].startswith(".venv-cuda/bin/python -m pytest")
    assert listed.endswith(" tests/serve\n")


@pytest.mark.parametrize(("words", "offline"), [([], "1"), (["RECIPE=mine.yaml"], "")])
def test_only_the_laptop_s_recipe_is_kept_from_the_hub(words: list[str], offline: str) -> None:
    said = make("--eval=say: ; @echo offline=$${HF_HUB_OFFLINE-}", "say", *words).stdout
    assert said == f"offline={offline}\n"


def test_an_unknown_backend_is_refused() -> None:
    ended = make("lint", "TORCH_BACKEND=rocm")
    assert ended.returncode == 2
    assert "TORCH_BACKEND is cpu or cuda, not 'rocm'" in ended.stderr


def test_torch_comes_from_a_folder_or_from_pytorch_s_index(bare_clone: Path) -> None:
    assert '--find-links "/wheels" "torch==' in make("-n", "lint", "PIP_FIND_LINKS=/wheels", where=bare_clone).stdout
    assert '--torch-backend cpu "torch==' in make("-n", "lint", "PIP_FIND_LINKS=", where=bare_clone).stdout
